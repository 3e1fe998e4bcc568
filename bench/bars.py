"""Charts of horizontal bars as SVG, in the colors of a light or a dark page."""

from __future__ import annotations

import html
import math
from collections.abc import Callable

Span = tuple[float, float]

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .beside, .tick { fill: #57606a; font-size: 11px }
  .back { fill: #ffffff }
  .grid { stroke: #d8dee4; stroke-width: 1 }
  .mark { stroke: #24292f; stroke-width: 1.5 }
  .ours { fill: #0072b2 } .ours.more { fill: #0072b2; fill-opacity: 0.45 }
  .theirs { fill: #8c959f } .theirs.more { fill-opacity: 0.45 }
  .behind { fill: #d55e00 } .behind.more { fill: #d55e00; fill-opacity: 0.45 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .beside, .tick { fill: #9aa4af }
    .back { fill: #161b22 }
    .grid { stroke: #30363d }
    .mark { stroke: #e6edf3 }
    .ours, .ours.more { fill: #56b4e9 }
    .theirs { fill: #768390 }
    .behind, .behind.more { fill: #e69f00 }
  }
"""
WIDTH, LEFT, RIGHT = 700, 316, 600
"""The width of a chart, and the ends of its axis; values may be right of it."""


class Chart:
    """Horizontal bars under each other, with labels left of them and values right of them."""

    def __init__(self, title: str, unit: str, x_of: Callable[[float], float], ticks: dict[float, str], origin: float) -> None:
        self.title, self.unit, self.x_of, self.ticks, self.origin = title, unit, x_of, ticks, origin
        self.parts: list[str] = []
        self.y = 30.0

    def add_text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        named = f' class="{style}"' if style else ""
        self.parts.append(f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text, quote=False)}</text>')

    def add_group(self, name: str) -> None:
        self.y += 8
        self.add_text(16, self.y + 8, name, "title")
        self.y += 20

    def add_bar(
        self, label: str, beside: str, ends: Span, value: str, style: str, mark: float | None = None, *, column: bool = False
    ) -> None:
        """Adds a bar from the origin to both ends; `column`: its value is at the right, away from its mark."""
        height = 32 if beside else 24
        self.add_text(LEFT - 10, self.y + (12 if beside else 16), label, anchor="end")
        if beside:
            self.add_text(LEFT - 10, self.y + 26, beside, "beside", "end")
        top, origin = self.y + height / 2 - 7, self.x_of(self.origin)
        near, far = sorted((self.x_of(end) for end in ends), key=lambda x: abs(x - origin))
        self.add_rectangle(style, origin, near, top)
        if abs(far - near) > 0.5:
            self.add_rectangle(f"{style} more", near, far, top)
        end = max(origin, near, far)
        if mark is not None:
            x = self.x_of(mark)
            self.parts.append(f'<path class="mark" d="M{x:.1f} {top - 3:g}v20"/>')
            end = max(end, x) if x - end < 8 * len(value) else end
        if column:
            self.add_text(WIDTH - 16, top + 11, value, anchor="end")
        else:
            self.add_text(end + 6, top + 11, value)
        self.y += height

    def add_rectangle(self, style: str, begin: float, end: float, top: float) -> None:
        left, width = min(begin, end), max(abs(end - begin), 1.0)
        self.parts.append(f'<rect class="{style}" x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="14"/>')

    def drawn(self) -> str:
        bottom = self.y + 4
        axis = []
        for value, label in self.ticks.items():
            x = self.x_of(value)
            axis.append(f'<path class="grid" d="M{x:.1f} 24V{bottom:g}"/>')
            axis.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14:g}" text-anchor="middle">{label}</text>')
        axis.append(f'<text class="tick" x="{(LEFT + RIGHT) / 2:g}" y="{bottom + 30:g}" text-anchor="middle">{self.unit}</text>')
        height = bottom + 42
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">',
                f"<title>{html.escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect class="back" width="{WIDTH}" height="{height:g}" rx="6"/>',
                *axis,
                *self.parts,
                "</svg>\n",
            ]
        )


def linear(end: float, begin: float = 0.0) -> Callable[[float], float]:
    return lambda value: LEFT + (RIGHT - LEFT) * (value - begin) / (end - begin)


def logarithmic(begin: float, end: float) -> Callable[[float], float]:
    return lambda value: LEFT + (RIGHT - LEFT) * math.log(value / begin) / math.log(end / begin)
