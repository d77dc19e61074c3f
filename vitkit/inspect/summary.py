"""The result of an inspection as a few printed lines and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitkit.inspect.embeddings import similarity_by_steps
from vitkit.inspect.inspection import Inspection
from vitkit.inspect.masks import InspectedMask, describe_masks
from vitkit.messages import print_line
from vitkit.model.build import Model, TokenModel
from vitkit.model.variants import name_of
from vitkit.text import counted, few, printable


def as_json(inspection: Inspection, files: Sequence[Path]) -> dict[str, Any]:
    config, distance = inspection.model.config, inspection.distance
    content: dict[str, Any] = {
        "variant": name_of(config),
        "image": list(config.image),
        "input": inspection.image_set.transform.description,
        "images": len(inspection.image_set.images),
        "found": inspection.image_set.total,
        "skipped": inspection.image_set.skipped,
        "does_not_apply": inspection.not_applicable,
        "page": str(files[0]),
        "figures": [str(path) for path in files[1:]],
    }
    if isinstance(inspection.model, TokenModel):
        content |= {"grid": list(inspection.model.config.grid), "stride": inspection.model.config.stride}
    if distance is not None:
        content["attention_distance"] = {
            "layers": [layer.label for layer in distance.attention_layers],
            "mean": _rounded(distance.per_layer),
            "heads": [_rounded(row) for row in distance.per_head],
            "uniform": round(distance.uniform, 2),
            "special_share": round(distance.special_share, 4),
        }
    if inspection.masks is not None:
        content["masks"] = [
            _mask_as_json(inspection.model, image.name, found)
            for image, found in zip(inspection.shown, inspection.masks, strict=True)
        ]
    if inspection.relevance is not None:
        labels = inspection.model.metadata.labels
        content["answers"] = [
            {
                "image": image.name,
                "label": labels[prediction] if labels else str(prediction),
                "probability": round(float(probability), 4),
                "index": int(prediction),
                "class": int(prediction),  # the names of 0.1, for one release
                "name": labels[prediction] if labels else None,
            }
            for image, prediction, probability in zip(
                inspection.shown, inspection.relevance.classes, inspection.relevance.probabilities, strict=True
            )
        ]
    if (drawn := inspection.completions) is not None:
        content["completions"] = {**asdict(drawn.sampling), "bits_per_pixel": _rounded(drawn.bits_per_pixel, 4)}
    if inspection.similarity is not None:
        content["position_similarity_by_steps"] = _rounded(similarity_by_steps(inspection.similarity), 4)
    return content


def print_summary(inspection: Inspection, files: Sequence[Path]) -> None:
    images, distance, similarity = inspection.image_set, inspection.distance, inspection.similarity
    all_used = images.total == len(images.images) + len(images.skipped)
    print_line(f"images     {len(images.images):,}" + ("" if all_used else f", evenly spaced among {images.total:,}"))
    print_line(f"input      {images.transform.description}")
    if images.skipped:
        print_line(f"skipped    {few([f'{printable(name)} ({reason})' for name, reason in images.skipped.items()])}")
    if inspection.masks is not None:
        print_line(f"masks      {describe_masks(inspection.model, inspection.masks)}")
    if distance is not None:
        first, last = distance.per_block[[0, -1]]
        print_line(
            f"distance   {first:.0f} px in the first layer, {last:.0f} px in the last; "
            f"uniform attention would be {distance.uniform:.0f} px"
        )
    if similarity is not None and similarity.shape[:2] != (1, 1):
        print_line(f"positions  cosine similarity of neighbours: {similarity_by_steps(similarity)[1]:.2f}")
    if (drawn := inspection.completions) is not None:
        number, originals = counted(drawn.sampling.samples, "sample"), counted(len(drawn.original), "image")
        print_line(f"completed  {number} of each of {originals}, {drawn.sampling}")
        print_line(f"bits       {drawn.bits_per_pixel.mean():.2f} per pixel of the originals")
    for reason in inspection.not_applicable:
        print_line(f"omitted    {reason}")
    print_line(f"written    {files[0]} and {counted(len(files) - 1, 'figure')}")


def _mask_as_json(model: Model, name: str, found: InspectedMask) -> dict[str, Any]:
    names = model.metadata.labels or tuple(map(str, range(model.config.classes)))
    return {
        "image": name,
        "shares": {names[one.number]: round(one.share, 4) for one in found.classes},
        "queries": [
            {
                "query": one.query,
                "label": names[one.number],
                "index": one.number,
                "confidence": round(one.confidence, 4),
                "share": round(one.share, 4),
            }
            for one in found.queries
        ],
        "winners": found.winners,
    }


def _rounded(values: Any, digits: int = 2) -> list[float]:
    return [round(float(value), digits) for value in values]
