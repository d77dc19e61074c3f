"""Open a tree of files that holds masks in any form: files beside the images, COCO's JSON or YOLO's text."""

from pathlib import Path

from vitkit.data.sources.coco import find_coco, open_coco
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.file_tree import FileTree, FolderTree
from vitkit.data.sources.folder_scan import FolderScan, scan_folder
from vitkit.data.sources.image_files import count_by_extension
from vitkit.data.sources.mask_folders import open_mask_files
from vitkit.data.sources.mask_layout import find_mask_layout
from vitkit.data.sources.yolo import find_shapes, find_yolo, open_yolo

BOXES_ONLY = "has boxes and no areas: boxes are for detection, which vitkit does not do"
_SOURCES = "folders, .zip files and manifests of this machine"
_LAYOUTS = (
    "images/a.jpg with masks/a.png, also train/ with trainannot/, splits above or below",
    "a.jpg with a.png, or a.png with a_mask.png, in one folder",
    "COCO's JSON: annotations/instances_train2017.json with train2017/, train/_annotations.coco.json",
    "YOLO's text: images/a.jpg with labels/a.txt and data.yaml",
    "a manifest (.csv, .jsonl) with the columns image and mask",
)


def open_masks(name: str, tree: FileTree) -> tuple[Data | None, list[str]]:
    """Return the images of a folder or archive with their masks, or None; and notes on what is like masks, but none."""
    notes = []
    if coco := find_coco(tree):
        data = open_coco(name, tree, coco)
        if data is not None:
            return data, []
        notes.append(f"{coco[0]} {BOXES_ONLY}")
    if pairs := find_yolo(tree.scan):
        shapes = find_shapes(tree, pairs)
        if shapes == "polygons":
            return open_yolo(name, tree, pairs), []
        if shapes == "boxes":
            notes.append(f"{next(filter(None, pairs.values()))} {BOXES_ONLY}")
    return open_mask_files(name, tree), notes


def open_coco_file(name: str, path: Path) -> Data:
    """Open a COCO file that was named itself, with the images around it."""
    folder = path.absolute().parent
    root = folder.parent if folder.name.lower() == "annotations" else folder
    tree = FolderTree(str(root), scan_folder(str(root)))
    data = open_coco(name, tree, [path.absolute().relative_to(root).as_posix()])
    if data is None:
        raise DataError(f"{name} {BOXES_ONLY}.", try_="polygons or RLE as the segmentation of its annotations")
    return data


def no_masks(name: str, scan: FolderScan | None, notes: list[str]) -> DataError:
    """Return the error where masks were asked for and there are none; without a scan, `name` cannot hold any."""
    found = [count_by_extension(scan.images + scan.others), *notes] if scan else "none of these on this machine"
    hint = {} if scan else {"try": f"download or unpack it: masks are read from {_SOURCES}"}
    return DataError(f"{name} has no masks for segmentation.", expected=_LAYOUTS, found=found, **hint)


def remote_masks_note(data: Data) -> str:
    """Return a note on masks behind a URL, from where they are not read; "" where there are none."""
    if not data.is_remote:
        return ""
    layout = find_mask_layout(data.name, [key for split in data.splits.values() for key in split.keys])
    if layout is None or not layout.certain:
        return ""
    return f"{layout.pairs[0][1]} looks like a mask; masks are read from {_SOURCES}: download it"
