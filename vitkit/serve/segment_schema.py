"""Types of the responses of segmentation models; FastAPI makes the OpenAPI description of them."""

from pydantic import BaseModel, Field

from vitkit.serve.schema import IMAGE_NAME, ErrorResponse


class RunLengths(BaseModel):
    """COCO's compressed run-length encoding, as pycocotools reads it."""

    size: tuple[int, int] = Field(description="height and width")
    counts: str


class ClassShare(BaseModel):
    label: str
    index: int = Field(description="the number of the class in the mask")
    share: float = Field(description="of the image's pixels")
    rle: RunLengths | None = Field(default=None, description="the pixels of the class, with mask=rle")


class ImageMask(BaseModel):
    """The mask of one image, with the keys of a row that `vitkit predict` writes."""

    image: str | None = Field(description=IMAGE_NAME)
    error: str | None = Field(description="why the image could not be decoded; there are no classes then")
    height: int = Field(description="of the upright image, and of its mask; 0 with an error")
    width: int
    windows: int = Field(description="that a large image was cut into; 1: resized as a whole")
    classes: list[ClassShare] = Field(description="the classes that the mask has, the largest first")
    mask: str = Field(default="", description="with mask=png, a PNG of class numbers with a palette, in base64")


class SegmentResponse(BaseModel):
    model: str
    predictions: list[ImageMask] = Field(description="one for each image, in the order of the request")


class SegmentErrorResponse(ErrorResponse, SegmentResponse):
    """The response if no image of the request could be decoded."""
