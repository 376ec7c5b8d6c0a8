"""What moves where a notebook has a kernel, and is a picture where it has none.

The picture is an output of its own, which any reader of the notebook can show. Controls stand above it as long as there
is a kernel that they can ask; what they choose replaces the picture, so that what was seen last is what is saved.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .style import Picture, shown

VIEW = "application/vnd.jupyter.widget-view+json"
RUN = "run this cell to move the picture"
NO_CORPSES = "<style>.jp-OutputArea-output.jupyter-widgets:not(:has(*)) { display: none }</style>"
"""JupyterLab's "model not found", which stands where the controls of an earlier kernel were, is not shown."""

BESIDE: Mapping[str, Any] = MappingProxyType({"layout": {"flex_flow": "row wrap"}})
"""Of a row of controls: where a window is too narrow for all of them, some stand below."""


class Live:
    """A picture for readers, with controls for those who run the notebook. Subclasses say what the controls are.

    Args:
        still: what is seen at first, and without a kernel.
    """

    def __init__(self, still: Picture) -> None:
        self.still = still
        self.seen = still.png()
        self._alt = still.alt
        self._widget: Any = None
        self._places: list[Any] = []  # where it is displayed

    def make_widget(self) -> Any:
        """Controls, of ipywidgets. They call `show`."""
        raise NotImplementedError

    @property
    def widget(self) -> Any:
        """The controls, made once. Raises ImportError where ipywidgets is not installed."""
        if self._widget is None:
            self._widget = self.make_widget()
        return self._widget

    def show(self, png: bytes, alt: str) -> None:
        """Replace the picture wherever it is displayed."""
        self.seen, self._alt = png, alt
        data, metadata = self._repr_mimebundle_()
        for place in self._places:
            place.update(data, raw=True, metadata=metadata)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = shown(self.seen, self._alt, repr(self))
        return data | {"text/html": NO_CORPSES + data["text/html"]}, metadata

    def _ipython_display_(self) -> None:
        """Two outputs: the controls, where there can be any, and the picture."""
        from IPython.display import display

        try:
            controls = self.widget._repr_mimebundle_()
            display({VIEW: controls[VIEW], "text/plain": RUN}, raw=True)
        except ImportError:
            pass
        data, metadata = self._repr_mimebundle_()
        self._places.append(display(data, raw=True, metadata=metadata, display_id=True))
