// What a reader of the open notebook could not read: [what is wrong, in which cell, the text], for each such text.
// Cut: a part of it lies outside what clips it. Pale: its contrast with what is behind it (WCAG 2.2) is below the least.
const [least] = arguments;
const notebook = window.jupyterapp.shell.currentWidget.content;
const AIR = 1.5; // pixels: letters lean out of their boxes, and sizes are rounded

function channels(colour) {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return colour.startsWith('color(srgb') ? [...parts.slice(0, 3).map(x => 255 * x), parts[3] ?? 1]
                                         : [...parts.slice(0, 3), parts[3] ?? 1];
}

function over(above, below) {
  return below.map((part, at) => above[3] * above[at] + (1 - above[3]) * part);
}

function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const layer = channels(getComputedStyle(at).backgroundColor);
    layers.push(layer);
    if (layer[3] === 1) break;
  }
  return layers.reduceRight((below, above) => over(above, below), [255, 255, 255]);
}

function luminance(colour) {
  const [r, g, b] = colour.map(x => x / 255).map(x => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(element) {
  const back = behind(element);
  const style = getComputedStyle(element);
  const ink = channels(element instanceof SVGElement ? style.fill : style.color);
  const [dark, light] = [luminance(over(ink, back)), luminance(back)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

// The nearest ancestor that hides what leaves it on this side, unless one can scroll there before.
function cutBy(element, box) {
  for (let at = element; at && at !== notebook.node; at = at.parentElement) {
    const style = getComputedStyle(at);
    const inside = at.getBoundingClientRect();
    if (['inline', 'contents'].includes(style.display) && !(at instanceof SVGSVGElement)) continue;
    const wide = box.right > inside.right + AIR || box.left < inside.left - AIR;
    const high = box.bottom > inside.bottom + AIR + 2 || box.top < inside.top - AIR - 2;
    if (wide && ['hidden', 'clip'].includes(style.overflowX)) return at;
    if (high && ['hidden', 'clip'].includes(style.overflowY)) return at;
    const scrolls = (wide && ['auto', 'scroll'].includes(style.overflowX)) || (high && ['auto', 'scroll'].includes(style.overflowY));
    if (scrolls) return at.classList.contains('jupyter-widgets') ? at : null; // controls that one must scroll to are not seen
  }
  const page = notebook.node.getBoundingClientRect();
  return box.right > page.right + AIR || box.left < page.left - AIR ? notebook.node : null;
}

function seen(element) {
  return element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
}

const brush = document.createElement('canvas').getContext('2d');
function menuIsCut(select) {
  const style = getComputedStyle(select);
  brush.font = style.font;
  const words = select.selectedOptions[0]?.textContent ?? '';
  const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return brush.measureText(words).width > room + AIR;
}

const found = [];
notebook.widgets.forEach((cell, place) => {
  const tell = (what, text) => found.push([what, place, text.trim().slice(0, 80)]);
  const roots = [...cell.node.querySelectorAll('.jp-RenderedMarkdown, .jp-OutputArea-output')];
  for (const root of roots.filter(each => !roots.some(other => other !== each && other.contains(each)))) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || element.closest('style, script, select, math, annotation, mjx-assistive-mml') || !seen(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      const boxes = [...range.getClientRects()].filter(box => box.width > 1 && box.height > 1);
      const clips = boxes.map(box => cutBy(element, box)).find(Boolean);
      if (clips) tell(`cut by .${clips.getAttribute('class')}`, walker.currentNode.data);
      if (element.closest('.jp-RenderedMarkdown pre')) continue; // the colours of code are JupyterLab's own
      const ratio = contrast(element);
      if (ratio < least) tell(`pale, ${ratio.toFixed(2)}`, walker.currentNode.data);
    }
    for (const image of root.querySelectorAll('img')) if (seen(image) && cutBy(image.parentElement, image.getBoundingClientRect())) tell('cut picture', image.alt);
    for (const select of root.querySelectorAll('select')) {
      if (seen(select) && menuIsCut(select)) tell('cut menu', select.selectedOptions[0].textContent);
    }
  }
});
return found;
