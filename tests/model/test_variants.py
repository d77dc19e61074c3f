"""Names → sizes, down to the last parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitkit
from vitkit.errors import ConfigError, SizeError
from vitkit.model.build import Model
from vitkit.model.config import from_dict, to_dict
from vitkit.model.sizes import RESNETS, SIZES, STEMS
from vitkit.model.variants import NAMED, configure, name_of

# Google's own tests (vit_jax), at 224 px with 1000 classes and a linear head
GOOGLE = {
    "Ti/16": 5_717_416,
    "S/32": 22_878_952,
    "S/16": 22_050_664,
    "B/32": 88_224_232,
    "B/16": 86_567_656,
    "B/8": 86_576_872,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
}
GOOGLE_OPTIONS = [
    ("B/16", {"pool": "gap"}, 86_566_120),
    ("S/16", {"pool": "gap"}, 22_049_896),
    ("B/16", {"representation": 768}, 87_158_248),
    ("R50+B/16", {"representation": 768}, 99_249_704),
]
BIT = {  # counted in timm
    "R50x1": 25_549_352,
    "R50x2": 97_988_712,
    "R101x1": 44_541_480,
    "R152x1": 60_185_128,
    "R152x2": 236_335_208,
    "R200x3": 568_633_000,
}


@pytest.mark.parametrize(("name", "count"), [*GOOGLE.items(), *BIT.items()])
def test_parameter_counts_are_the_papers(name: str, count: int):
    assert parameters(shell(name)) == count


@pytest.mark.parametrize(("name", "options", "count"), GOOGLE_OPTIONS)
def test_parameter_counts_with_other_heads_are_googles(name: str, options: dict, count: int):
    assert parameters(shell(name, **options)) == count


def test_the_root_hybrid_has_fifty_tokens():
    assert configure("R+Ti/16").tokens == 50  # paper.md: its stem is 4x under 8-pixel patches, so really /32


@pytest.mark.parametrize("name", [name for name in NAMED if "+" in name and name != "R+Ti/16"])
def test_the_number_of_a_hybrid_is_its_total_stride(name: str):
    assert configure(name).stride == int(name.split("/")[1])


@given(
    st.one_of(
        st.builds("{}/{}".format, st.sampled_from(list(SIZES)), st.sampled_from([2, 4, 8, 14, 16, 28, 32])),
        st.builds(
            lambda size, stem: f"{stem[0]}+{size}/{stem[1]}", st.sampled_from(list(SIZES)), st.sampled_from(list(STEMS))
        ),
        st.builds("R{}x{}".format, st.sampled_from(list(RESNETS)), st.integers(1, 4)),
    )
)
def test_a_name_survives_its_configuration_and_json(name: str):
    config = configure(name)
    assert name_of(config) == name
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("b/16", "B/16"),
        ("ViT-B/16", "B/16"),
        ("R50+B16", "R50+B/16"),
        ("R50+B/8", "R50+B/16"),
        ("R51x1", "R50x1"),
        ("B-16", "B/16"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(wrong: str, suggested: str):
    with pytest.raises(ConfigError, match="did you mean") as error:
        vitkit.create(wrong)
    assert suggested in str(error.value)


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(ConfigError, match="no option 'dropuot'; did you mean dropout"):
        vitkit.create("mu/4", image=32, dropuot=0.1)


def test_the_resnet_part_of_a_model_takes_a_table_of_what_differs():
    named = configure("R50x1").body
    small = configure("R50x1", body={"layers": [1, 2], "width": 32}).body
    assert small == replace(named, layers=(1, 2), width=32)
    assert configure("R50x1", body=small).body == small
    assert configure("R26+mu/32", stem={"layers": [1, 1, 1, 1]}).stem == replace(
        configure("R26+mu/32").stem, layers=(1, 1, 1, 1)
    )
    with pytest.raises(ConfigError, match="body of R50x1 has no option 'widht'; did you mean width"):
        configure("R50x1", body={"widht": 32})
    with pytest.raises(ConfigError, match="body of R50x1"):
        configure("R50x1", body={"layers": "many"})
    with pytest.raises(ConfigError, match="cannot be built"):
        configure("R50x1", body={"width": 48})


def test_a_resnet_has_no_transformer_options():
    with pytest.raises(ConfigError, match="R50x1, a ResNet, has no option 'pool'"):
        vitkit.create("R50x1", pool="gap")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mu/16", {"image": 230}, "230 x 230 image cannot be cut into 16-pixel patches; use 224 x 224"),
        ("mu/16", {"image": (224, 8)}, "224 x 8 image cannot be cut"),
        ("R26+mu/32", {"image": 48}, "48 x 48 image cannot be cut into 32-pixel patches"),
        ("mu/16", {"image": (224,)}, "is no size"),
        ("mu/16", {"image": 224.0}, "is no size"),
        ("R50x1", {"image": (0, 5)}, "is empty"),
    ],
)
def test_an_image_that_cannot_be_cut_is_refused_with_one_that_can(name: str, options: dict, message: str):
    with pytest.raises(SizeError, match=message):
        vitkit.create(name, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "3d"}, "positions='3d' is not known"),
        ({"pool": "max"}, "pool='max' is not known"),
        ({"heads": 5}, "cannot be shared by 5 heads"),
        ({"dropout": 1.0}, "is a probability"),
        ({"class_token": False}, "pool='token' reads the class token"),
        ({"positions": "relative", "inject": "stem"}, "nothing to add at the stem"),
        ({"positions": "none", "inject": "every"}, "nothing to inject"),
        ({"axial": True}, "a class token is in neither"),
        ({"classes": -1}, "classes=-1"),
        ({"classes": "10"}, "must be a whole number"),
        ({"depth": 2.0}, "whole number"),
        ({"representation": -5}, "representation=-5"),
        ({"eps": -1.0}, "must be a number above 0"),
        ({"eps": None}, "eps=None must be a number"),
        ({"dropout": "a"}, "dropout='a' is a probability"),
        ({"axial": "False"}, "axial='False' must be true or false"),
        ({"class_token": "yes"}, "must be true or false"),
        ({"stem": "R50"}, "ConvConfig"),
    ],
)
def test_combinations_that_mean_nothing_are_refused_with_a_reason(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        vitkit.create("mu/8", image=32, **options)


def shell(name: str, **options: object) -> Model:
    with torch.device("meta"):
        return vitkit.create(name, **options)


def parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
