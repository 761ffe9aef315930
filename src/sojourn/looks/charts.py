"""What charts have in common: colours, fonts, lines that follow light and dark."""

from typing import Any

Spec = dict[str, Any]  # of Vega-Lite

LOG_SPAN = 100.0  # positive data spanning more than this are drawn on a log scale
# Okabe and Ito's colours without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
CONFIG: Spec = {
    "background": "transparent",  # the page shows through, so that light and dark both work
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelColor": "#555",
        "titleColor": "#333",
        "gridColor": "#e4e4e4",
        "domainColor": "#999",
        "tickColor": "#999",
        "labelOverlap": True,
        "labelFlush": False,
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "title": {"fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 12},
}
