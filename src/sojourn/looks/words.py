"""Numbers and metrics in words, the same in the report, in the terminal and on the status page."""

import math

METRIC_TITLES = {
    "test_accuracy": "Test accuracy",
    "test_loss": "Test loss",
    "suboptimality": "Suboptimality",
    "distance": "Distance to x*",
    "accuracy": "Training accuracy",
    "loss": "Training loss",
    "grad_norm": "Gradient norm",
    "drift": "Client drift",
    "clipped": "Share of answers clipped",
    "consensus": "Consensus error",
    "consensus4": "Consensus error, fourth moment",
    "consensus_inside": "Consensus error inside the rounds",
    "consensus4_inside": "Fourth moment of the consensus error inside the rounds",
    "client_drift": "Drift of each client",
    "cosine": "Cosine between client updates",
    "cosine_min": "Least cosine between client updates",
    "distance_to_mean_optimum": "Distance to the mean of the clients' optima",
    "distance_to_fixed_point": "Distance to the fixed point",
    "model_norm": "Norm of the model",
    "tuned_step_size": "Step size, tuned",
    "tuned_local_steps": "Local steps, tuned",
    "consensus_slope": "Growth of the consensus error inside a round (1: noise, 2: drift)",
    "drift_ratio": "Drift ratio",
}
SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NONE = "–"


def higher_is_better(metric: str) -> bool:
    """Accuracies grow, everything else that is measured should shrink."""
    return "accuracy" in metric


def metric_title(metric: str) -> str:
    """A metric in words."""
    return METRIC_TITLES.get(metric, metric.replace("_", " ").capitalize())


def number(value: float, digits: int = 4) -> str:
    """Four significant digits: 0.01235, 1.5e−7, 1235."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else ("∞" if value > 0 else "−∞")
    text = f"{value:.{digits}g}"
    if "e+" in text and abs(value) < 1e6:  # 12345 rather than 1.235e+04
        return f"{value:.0f}"
    return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", "−")


def si(value: float) -> str:
    """Three significant digits with a suffix: 12.3 M. Whole numbers below 1000 stay as they are."""
    if not math.isfinite(value):
        return number(value)
    for size, suffix in SI:
        # 999 600 rounds to 1.00 M, not to 1000 k
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled) * 1.0005)))}f} {suffix}"
    return f"{value:.0f}" if value == round(value) else number(value, 3)


def duration(seconds: float) -> str:
    """85 ms, 12.3 s, 4.1 min, 2.5 h."""
    if not math.isfinite(seconds):
        return NONE
    for size, unit in ((7200.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{number(seconds / (3600 if unit == 'h' else 60), 3)} {unit}"
    return f"{number(seconds, 3)} s" if seconds >= 1 or seconds == 0 else f"{number(seconds * 1e3, 3)} ms"


def metric_value(metric: str, value: float) -> str:
    """A metric as a reader expects it: accuracies in per cent."""
    if higher_is_better(metric) and math.isfinite(value) and abs(value) <= 1:
        return f"{100 * value:.2f} %"
    return number(value)
