"""Networks by name: (input shape, number of classes, key, options) -> an Equinox model of one input.

A model maps one input to class scores. One with dropout also takes `key=…`, and drops only when it is given one. Images
are (height, width, channels), or (height, width) with one channel.

A builder with an `outline` makes its start together with the clients: after the key it takes their data, and it returns
a `Prepared` model, which says what was sent. The outline takes no data and makes a model of the same shapes.

LANGUAGE_MODELS are for texts: (size of the vocabulary, key, options) -> a model that maps token numbers (length,) to
scores (length, vocabulary) of the tokens that follow.
"""

from collections.abc import Callable
from typing import Any

from sojourn.models.cnn import CNN, cifar_cnn_async, cifar_cnn_lamb, cifar_cnn_large, cifar_cnn_small, mnist_cnn
from sojourn.models.deep_relu import DeepReLU, deep_relu
from sojourn.models.lstm import LSTM, lstm
from sojourn.models.mlp import MLP, mlp
from sojourn.models.pyramid import Pyramid, pyramid, pyramid_of
from sojourn.models.resnet import ResNet, ResNet9, resnet9, resnet18, resnet50
from sojourn.models.wide_exchange import WideStart, wide_pyramid

MODELS: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "deep-relu": deep_relu,
    "pyramid": pyramid,
    "wide-pyramid": wide_pyramid,
    "mnist-cnn": mnist_cnn,
    "cifar-cnn-small": cifar_cnn_small,
    "cifar-cnn-large": cifar_cnn_large,
    "cifar-cnn-async": cifar_cnn_async,
    "cifar-cnn-lamb": cifar_cnn_lamb,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "resnet50": resnet50,
}
LANGUAGE_MODELS: dict[str, Callable[..., Any]] = {"lstm": lstm}

__all__ = [
    "CNN", "LANGUAGE_MODELS", "LSTM", "MLP", "MODELS", "DeepReLU", "Pyramid", "ResNet", "ResNet9", "WideStart",
    "cifar_cnn_async", "cifar_cnn_lamb", "cifar_cnn_large", "cifar_cnn_small", "deep_relu", "lstm", "mlp", "mnist_cnn",
    "pyramid", "pyramid_of", "resnet9", "resnet18", "resnet50", "wide_pyramid",
]  # fmt: skip
