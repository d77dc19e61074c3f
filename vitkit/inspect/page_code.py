"""The Python code on inspect.html that computes the arrays of the page."""

from vitkit.inspect.inspection import SHOWN_IMAGES, Inspection


def python_code(inspection: Inspection, source: str) -> str:
    """Return Python code that computes the arrays of the page; only the folder of images has to be filled in."""
    calls = [
        *[("embeddings", "filter_components(model)", "(n, side, side, channels)")] * (inspection.filters is not None),
        ("dense", "dense_features(model, images)", "(images, rows, columns, width)"),
    ]
    if inspection.masks is not None:
        calls.append(("masks", "inspect_masks(model, images)", "of each image .mask, .classes, .queries"))
    if inspection.similarity is not None:
        calls.append(("embeddings", "position_similarity(model)", "(rows, columns, rows, columns)"))
    if inspection.rollout is not None:
        calls += [
            ("attention", "attention_maps(model, images)", "(images, layers, heads, rows, columns)"),
            ("rollout", "rollout(model, images)", "(images, rows, columns)"),
            ("distance", "attention_distance(model, images)", ".per_head, .per_layer: pixels"),
        ]
    elif inspection.distance is not None:
        calls.append(("unit_attention", "unit_attention(model, images)", "maps, and the distance: .per_head: pixels"))
    if inspection.relevance is not None:
        calls.append(("relevance", "relevance(model, images)", ".maps, .classes"))
    column = max(len(call) + len(module) for module, call, _ in calls) + 1
    lines = [f"{f'{module}.{call}':<{column}}  # {shape}" for module, call, shape in calls]
    modules = ", ".join(sorted({module for module, _, _ in calls}))
    height, width = inspection.model.config.image
    image = height if height == width else (height, width)
    return "\n".join(
        [
            "import vitkit",
            f"from vitkit.inspect import {modules}",
            "from vitkit.inspect.image_set import open_images",
            "",
            f"model = vitkit.load({source!r}, image={image})",
            'image_set = open_images(model, ["photos/"])',
            f"images = image_set.batch(image_set.evenly_spaced({SHOWN_IMAGES}))  # (images, channels, height, width)",
            "",
            *lines,
        ]
    )
