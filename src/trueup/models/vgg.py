"""VGG-16 (Simonyan and Zisserman, 2015) for 32 x 32 images.

Thirteen convolutions and, as kuangliu has it, one linear layer in place of three.
"""

from __future__ import annotations

from torch import nn

from trueup.models.initialise import he_normal
from trueup.models.shapes import square_image

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels after each convolution; a max-pooling after each stage brings 32 x 32 pixels down to one."""


def vgg16(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Without normalisation; 14.7 million parameters.

    PyTorch's default initialisation would lose the signal on its way through thirteen layers: He's instead (normal,
    fan out), the biases zero and the head's weights from N(0, 0.01^2), as torchvision has it.
    """
    net = stack("vgg16", classes, input_shape, normalised=False)
    he_normal(net, "fan_out")
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net


def vgg16_bn(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """With batch normalisation; 14.7 million parameters. PyTorch's default initialisation, as kuangliu's."""
    return stack("vgg16-bn", classes, input_shape, normalised=True)


def stack(name: str, classes: int, input_shape: tuple[int, ...], *, normalised: bool) -> nn.Module:
    before, _ = square_image(name, input_shape, "H = W = 32", lambda side: side == 32)
    layers: list[nn.Module] = []
    for stage in STAGES:
        for after in stage:
            layers.append(nn.Conv2d(before, after, 3, padding=1))
            layers += [nn.BatchNorm2d(after), nn.ReLU()] if normalised else [nn.ReLU()]
            before = after
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, classes))
