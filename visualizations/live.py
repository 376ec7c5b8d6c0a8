"""What moves where a notebook has a kernel, and is a picture where it has none."""

from typing import Any

from .style import Picture


class Live:
    """A picture for readers, a widget for those who run the notebook. Subclasses say what the widget is.

    Args:
        still: what is seen without a kernel.
    """

    def __init__(self, still: Picture) -> None:
        self.still = still
        self._widget: Any = None

    def make_widget(self) -> Any:
        """A widget of ipywidgets."""
        raise NotImplementedError

    @property
    def widget(self) -> Any:
        """The widget, made once. Raises ImportError where ipywidgets is not installed."""
        if self._widget is None:
            self._widget = self.make_widget()
        return self._widget

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = self.still._repr_mimebundle_()
        try:
            view = self.widget._repr_mimebundle_()
        except ImportError:
            return data, metadata
        return {**data, **{kind: value for kind, value in view.items() if kind != "text/plain"}}, metadata
