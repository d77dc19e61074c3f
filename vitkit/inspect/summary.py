"""What was found, in a few lines for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.inspect.embeddings import similarity_by_steps
from vitkit.inspect.findings import Findings
from vitkit.model.variants import name_of
from vitkit.model.vit import VisionTransformer
from vitkit.text import counted, few, printable


def as_json(found: Findings, files: Sequence[Path]) -> dict[str, Any]:
    config, distance = found.model.config, found.distance
    content: dict[str, Any] = {
        "variant": name_of(config),
        "image": list(config.image),
        "pictures": len(found.gallery.pictures),
        "found": found.gallery.found,
        "skipped": found.gallery.skipped,
        "does_not_apply": found.not_here,
        "page": str(files[0]),
        "figures": [str(path) for path in files[1:]],
    }
    if isinstance(found.model, VisionTransformer):
        content |= {"grid": list(found.model.config.grid), "stride": found.model.config.stride}
    if distance is not None:
        content["attention_distance"] = {
            "layers": [view.label for view in distance.views],
            "mean": _rounded(distance.layers),
            "heads": [_rounded(row) for row in distance.heads],
            "uniform": round(distance.uniform, 2),
        }
    if found.relevance is not None:
        labels = found.model.metadata.labels
        content["answers"] = [
            {
                "picture": picture.name,
                "class": int(answer),
                "name": labels[answer] if labels else None,
                "probability": round(float(probability), 4),
            }
            for picture, answer, probability in zip(
                found.shown, found.relevance.classes, found.relevance.probabilities, strict=True
            )
        ]
    if found.similarity is not None:
        content["position_similarity_by_steps"] = _rounded(similarity_by_steps(found.similarity), 4)
    return content


def print_findings(found: Findings, files: Sequence[Path]) -> None:
    gallery, distance = found.gallery, found.distance
    chosen = "" if gallery.found == len(gallery.pictures) + len(gallery.skipped) else f", spread over {gallery.found:,}"
    print(f"pictures   {len(gallery.pictures):,}{chosen}")
    if gallery.skipped:
        names = [f"{printable(name)} ({reason})" for name, reason in gallery.skipped.items()]
        print(f"left out   {few(names)}")
    if distance is not None:
        first, last = distance.by_depth[[0, -1]]
        print(
            f"distance   {first:.0f} px in the first layer, {last:.0f} px in the last; "
            f"{distance.uniform:.0f} px is looking everywhere alike"
        )
    if found.similarity is not None and found.similarity.shape[:2] != (1, 1):
        print(f"positions  neighbours' embeddings have a cosine of {similarity_by_steps(found.similarity)[1]:.2f}")
    for reason in found.not_here:
        print(f"not here   {reason}")
    print(f"written    {files[0]}, {counted(len(files) - 1, 'figure')} beside it")


def _rounded(values: Any, digits: int = 2) -> list[float]:
    return [round(float(value), digits) for value in values]
