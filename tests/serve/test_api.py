"""The HTTP API, straight into the application: right answers for the right pictures."""

from __future__ import annotations

import asyncio
import base64
import io

import httpx
import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.serve.asking import JPEG, asked, in_base64, once
from tests.serve.small import best, form, picture, service, small_classifier
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.rollout import rollout
from vitkit.serve.model_pool import Service


def test_a_prediction_shows_what_the_model_sees_where_that_is_asked_for():
    """Also of a ResNet, which has no attention to show it with."""
    classifier = small_classifier("ResNet")
    answer = once("POST", "/v1/predict?seen=true", made=Service({"small": classifier}), files=form(JPEG, b"x")).json()
    first, second = answer["predictions"]
    seen = Image.open(io.BytesIO(base64.b64decode(first["seen"].removeprefix("data:image/png;base64,"))))
    assert np.abs(np.asarray(seen, dtype=float) - classifier.frame(JPEG).permute(1, 2, 0).numpy()).max() <= 0.5
    assert best(first)[classifier(JPEG).top(1)[0].index] == pytest.approx(classifier(JPEG).probability, abs=1e-4)
    assert "seen" not in second
    assert "seen" not in once("POST", "/v1/predict", files=form(JPEG)).json()["predictions"][0]


def test_every_picture_gets_its_own_answer_whoever_it_is_computed_with():
    classifier, pictures = small_classifier(), [picture(seed) for seed in range(48)]
    alone = [classifier(content).probabilities for content in pictures]
    assert len({tuple(row.round(3)) for row in alone}) == 48  # a mixed-up answer would show
    made = Service({"small": classifier})

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(
            *(
                http.post("/v1/predict?top=10", files=form(content))
                if place % 2
                else http.post("/v1/predict?top=10", json=in_base64(content))
                for place, content in enumerate(pictures)
            )
        )

    for response, row in zip(asked(made, scene), alone, strict=True):
        answer = response.json()
        assert (response.status_code, answer["model"]) == (200, "small")
        told = best(answer["predictions"][0])
        assert np.abs(np.array([told[index] for index in range(10)]) - row).max() < 1e-4
    batches = made.meters.registry.get_sample_value
    assert batches("vitkit_batch_pictures_sum", {"model": "small", "task": "predict"}) == 48
    assert (batches("vitkit_batch_pictures_count", {"model": "small", "task": "predict"}) or 48) < 48


def test_several_pictures_are_answered_in_their_order_the_unreadable_with_a_reason():
    classifier = small_classifier()
    response = once(
        "POST",
        "/v1/predict?top=3",
        made=Service({"small": classifier}),
        files=form(picture(1), b"no picture", JPEG[:-20], picture(2)),
    )
    first, second, third, fourth = response.json()["predictions"]
    assert response.status_code == 200
    assert second["error"].startswith("not a picture in any format that is read here: JPEG, PNG")
    assert (second["answers"], set(second)) == ([], {"error", "answers"})
    assert "truncated" in third["error"], third
    for seed, told in ((1, first), (2, fourth)):
        assert told["error"] is None
        assert [answer["label"] for answer in told["answers"]] == [
            answer.label for answer in classifier(picture(seed)).top(3)
        ]


def test_only_unreadable_pictures_are_a_422_with_the_same_body_and_an_error():
    told = once("POST", "/v1/predict", files=form(b"a", b"b"))
    assert told.status_code == 422
    assert told.json()["error"] == "None of the pictures can be read."
    assert [each["answers"] for each in told.json()["predictions"]] == [[], []]
    told = once("POST", "/v1/embed", files=form(b"a"))
    assert (told.status_code, told.json()["width"]) == (422, 0)


def test_more_answers_than_classes_are_all_of_them():
    answer = once("POST", "/v1/predict?top=1000", files=form(*[JPEG] * 3)).json()
    assert [len(each["answers"]) for each in answer["predictions"]] == [10] * 3


def test_embeddings_are_the_models_own():
    classifier = small_classifier()
    answer = once("POST", "/v1/embed", made=Service({"small": classifier}), files=form(picture(3), b"x")).json()
    expected = classifier.embed(classifier.see(picture(3))[None])[0]
    assert answer["width"] == len(expected)
    assert np.allclose(answer["embeddings"][0]["vector"], expected, atol=1e-5)
    assert (answer["embeddings"][1]["vector"], "not a picture" in answer["embeddings"][1]["error"]) == ([], True)


@pytest.mark.parametrize(
    ("query", "views", "heads"), [("", None, None), ("?layer=1", [1], None), ("?layer=0&head=1", [0], [1])]
)
def test_attention_is_what_inspect_finds(query: str, views: list[int] | None, heads: list[int] | None):
    classifier = small_classifier()
    answer = once("POST", f"/v1/attention{query}", made=Service({"small": classifier}), files=form(JPEG)).json()
    image = classifier.see(JPEG)[None]
    maps = attention_maps(classifier.model, image, layers=views, heads=heads)[0]
    assert np.allclose(answer["maps"], maps, atol=1e-6)
    assert np.allclose(answer["rollout"], rollout(classifier.model, image)[0], atol=1e-6)
    assert (len(answer["views"]), len(answer["heads"])) == maps.shape[:2]
    assert best(answer["prediction"])[classifier(JPEG).top(1)[0].index] == pytest.approx(
        classifier(JPEG).probability, abs=1e-4
    )
    seen = Image.open(io.BytesIO(base64.b64decode(answer["seen"].removeprefix("data:image/png;base64,"))))
    assert np.abs(np.asarray(seen, dtype=float) - classifier.frame(JPEG).permute(1, 2, 0).numpy()).max() <= 0.5


@pytest.mark.parametrize("kind", ["axial", "gap", "non-square, one channel", "five channels", "hybrid"])
def test_models_of_other_kinds_show_their_attention_or_say_why_not(kind: str):
    made = service(kind=kind)
    content = picture(5)
    if kind == "five channels":
        file = io.BytesIO()
        np.save(file, np.random.default_rng(0).integers(0, 256, (40, 40, 5), dtype=np.uint8))
        content = file.getvalue()
    response = once("POST", "/v1/attention", made=made, files=form(content))
    assert response.status_code == 200, response.text
    assert response.json()["views"] == made.models["small"].describe().views


def test_a_resnet_predicts_and_says_that_it_has_no_attention():
    made = service(kind="ResNet")

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post(f"/v1/{task}", files=form(JPEG)) for task in ("predict", "attention")]

    answers = asked(made, scene)
    assert answers[0].status_code == 200
    assert (answers[1].status_code, "ResNet" in answers[1].json()["error"]) == (422, True)
    told = made.models["small"].describe()
    assert (told.views, told.heads, told.grid) == ([], 0, None)


def test_models_are_asked_by_name_and_the_first_is_the_default():
    many = {"one": small_classifier(), "two": small_classifier("gap")}
    made = Service(many)

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await http.get("/v1/models"),
            *[
                await http.post(f"/v1/predict?top=10{query}", files=form(JPEG))
                for query in ("", "&model=", "&model=two", "&model=tow")
            ],
        ]

    listed, *answers = asked(made, scene)
    assert listed.json()["default"] == "one"
    assert [
        (model["name"], model["variant"], model["image"], len(model["classes"])) for model in listed.json()["models"]
    ] == [("one", "mu/8", [32, 32], 10), ("two", "mu/8", [32, 32], 10)]
    assert listed.json()["limits"] == {"body_bytes": 32_000_000, "pixels": 50_000_000, "pictures": 64, "seconds": 30}
    for response, name in zip(answers, ("one", "one", "two"), strict=False):
        assert response.json()["model"] == name
        answer = many[name](JPEG).top(1)[0]
        assert best(response.json()["predictions"][0])[answer.index] == pytest.approx(answer.probability, abs=1e-4)
    assert (answers[3].status_code, "did you mean two" in answers[3].json()["error"]) == (404, True)


def test_a_classifier_is_not_changed_by_being_served():
    classifier = small_classifier()
    before = classifier(JPEG).probabilities
    once("POST", "/v1/predict", made=Service({"small": classifier}), files=form(JPEG))
    assert np.array_equal(before, classifier(JPEG).probabilities)
    assert isinstance(classifier, vitkit.Classifier)
