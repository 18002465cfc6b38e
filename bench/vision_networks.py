"""The networks of torchvision and timm; see foreign_networks.py. Needs neither until one is built."""

from functools import partial
from typing import Any

import torch
from torch import nn

import torchvision_stubs
from foreign_networks import Network, images

_TORCHVISION: dict[str, dict[str, Any]] = {
    "alexnet": {"size": 96},
    "vgg11_bn": {"size": 64},
    "resnet18": {"size": 128},
    "resnet50": {"size": 128},
    "densenet121": {"size": 96},
    "squeezenet1_1": {"size": 128},
    "googlenet": {"size": 128, "aux_logits": False, "init_weights": False},
    "shufflenet_v2_x1_0": {"size": 128},
    "mobilenet_v2": {"size": 128},
    "mobilenet_v3_small": {"size": 128},
    "mnasnet1_0": {"size": 128},
    "efficientnet_b0": {"size": 224},
    "regnet_y_400mf": {"size": 128},
    "convnext_tiny": {"size": 96},
    "swin_t": {"size": 96},
    "swin_v2_t": {"size": 96},
    "lraspp_mobilenet_v3_large": {"size": 96, "weights_backbone": None},
    "fcn_resnet50": {"size": 64, "weights_backbone": None},
    "r3d_18": {"size": 32, "frames": 4},
}
_DETECTORS: dict[str, dict[str, Any]] = {
    "ssdlite320_mobilenet_v3_large": {},
    "retinanet_resnet50_fpn": {"min_size": 96, "max_size": 96},
}

_TIMM: dict[str, dict[str, Any]] = {
    # convolutions with skips, and their attentions
    "resnet10t": {"size": 128},
    "seresnet18": {"size": 128},
    "gcresnet33ts": {"size": 96},
    "skresnet18": {"size": 128},
    "resnest14d": {"size": 96},
    "cspresnet50": {"size": 96},
    "dla46_c": {"size": 128},
    "dpn48b": {"size": 96},
    "hrnet_w18_small": {"size": 96},
    "hgnetv2_b0": {"size": 128},
    "regnetx_002": {"size": 128},
    "regnety_002": {"size": 128},
    "repvgg_a0": {"size": 96},
    "mobileone_s0": {"size": 96},
    # weights that are not what is convolved with
    "nf_resnet26": {"size": 96},
    "nf_regnet_b0": {"size": 96},
    "nfnet_l0": {"size": 96},
    "resnetv2_50x1_bit": {"size": 64},
    # mobile networks
    "mobilenetv1_100": {"size": 128},
    "mobilenetv2_100": {"size": 128},
    "mobilenetv3_large_100": {"size": 128},
    "mobilenetv4_conv_small": {"size": 128},
    "mobilenetv4_hybrid_medium": {"size": 128},
    "efficientnet_b0": {"size": 128},
    "tf_efficientnet_cc_b0_4e": {"size": 96},
    "tf_efficientnet_lite0": {"size": 128},
    "mixnet_s": {"size": 96},
    "lcnet_050": {"size": 128},
    "ghostnet_100": {"size": 128},
    "ghostnetv2_100": {"size": 96},
    "ghostnetv3_100": {"size": 96},
    "starnet_s1": {"size": 128},
    "repvit_m0_9": {"size": 96},
    "shvit_s1": {"size": 128},
    # convolutions in the manner of transformers
    "convnext_atto": {"size": 128},
    "convnextv2_atto": {"size": 128},
    "inception_next_atto": {"size": 128},
    "focalnet_tiny_srf": {"size": 64},
    "poolformer_s12": {"size": 96},
    "caformer_s18": {"size": 96},
    # both
    "coat_tiny": {"size": 96, "img_size": 96},
    "coatnet_nano_rw_224": {"size": 64, "img_size": 64},
    "levit_128s": {"size": 224},
    "edgenext_small": {"size": 128},
    "maxvit_pico_rw_256": {"size": 64, "img_size": 64},
    "mobilevit_xxs": {"size": 128},
    "mobilevitv2_050": {"size": 128},
    "csatv2": {"size": 128},
    "eca_botnext26ts_256": {"size": 256},
    "lambda_resnet26t": {"size": 128},
    "efficientvit_m0": {"size": 224},
    "efficientvit_b0": {"size": 96},
    "swiftformer_xs": {"size": 96},
    "davit_tiny": {"size": 64},
    # transformers and perceptrons
    "vit_tiny_patch16_224": {"size": 96, "img_size": 96},
    "eva02_tiny_patch14_224": {"size": 98, "img_size": 98},
    "beit_base_patch16_224": {"size": 64, "img_size": 64, "depth": 4},
    "cait_xxs24_224": {"size": 64, "img_size": 64},
    "xcit_nano_12_p16_224": {"size": 96},
    "pit_ti_224": {"size": 96, "img_size": 96},
    "swin_tiny_patch4_window7_224": {"size": 112, "img_size": 112},
    "swinv2_tiny_window8_256": {"size": 128, "img_size": 128},
    "pvt_v2_b0": {"size": 96},
    "sequencer2d_s": {"size": 64, "img_size": 64},
    "hiera_tiny_224": {"size": 96, "img_size": (96, 96)},
    "mixer_s32_224": {"size": 96, "img_size": 96},
    "gmlp_ti16_224": {"size": 96, "img_size": 96},
}


def _torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    torchvision_stubs.need()
    import torchvision

    found: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return found


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    torchvision_stubs.need()
    import timm

    found: nn.Module = timm.create_model(name, pretrained=False, **options)
    return found


def _network(library: str, name: str, given: dict[str, Any]) -> Network:
    options = {key: value for key, value in given.items() if key not in ("size", "frames")}
    build = {"torchvision": _torchvision, "timm": _timm}[library]
    return Network(library, partial(build, name, options), images(given["size"], frames=given.get("frames", 0)))


def _detector(name: str, options: dict[str, Any]) -> Network:
    build = partial(_torchvision, name, {"weights_backbone": None, **options})
    box = {"boxes": torch.tensor([[8.0, 8.0, 60.0, 60.0]]), "labels": torch.tensor([1])}

    def pictures(batch: int) -> list[torch.Tensor]:
        return [torch.rand(3, 96, 96) for _ in range(batch)]

    return Network(
        "torchvision", build, lambda batch: (pictures(batch),), lambda batch: (pictures(batch), [box] * batch), True
    )


VISION = {
    **{f"torchvision/{name}": _network("torchvision", name, given) for name, given in _TORCHVISION.items()},
    **{f"torchvision/{name}": _detector(name, options) for name, options in _DETECTORS.items()},
    **{f"timm/{name}": _network("timm", name, given) for name, given in _TIMM.items()},
}
