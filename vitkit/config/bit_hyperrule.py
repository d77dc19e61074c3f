"""BiT-HyperRule (Kolesnikov et al. 2020): the fine-tuning of the paper's ResNet baselines, by the size of the data.

Of a dataset, the rule asks for two things only: how many images it has, and how large they are.

images              steps     mixup         median image         resized to    random crop
up to 20,000           500    none          under 96 x 96 px     160 px        128 px
up to 500,000       10,000    0.1           larger               448 px        384 px
more                20,000    0.1

All of them: SGD with momentum 0.9 at 0.003, batch 512, no weight decay, a tenth of the rate after 30, 60 and 90 % of
the steps, random flips. At test time, images are resized to the size of the crop.
"""

from vitkit.config.image_size import fitting_side
from vitkit.config.schema import SGD, Augmentation, Fit, Schedule
from vitkit.data.image_sizes import DataSize

IMAGENET = DataSize(images=1_281_167, height=375, width=500, short_side=375)
SMALL, LARGE = 20_000, 500_000  # images
SMALL_AREA = 96 * 96  # pixels


def bit_rule(model: str, data: DataSize) -> Fit:
    """Return the settings for fine-tuning a model on data of that size."""
    steps = 500 if data.images < SMALL else 10_000 if data.images < LARGE else 20_000
    resized, side = (160, 128) if data.height * data.width < SMALL_AREA else (448, 384)
    side = fitting_side(model, side)
    return Fit(
        model=model,
        image=(side, side),
        resize="squash",
        batch=512,
        steps=steps,
        lr=0.003,
        optimizer=SGD(momentum=0.9),
        # the warm-up is that of Google's code; the rule in the paper does not mention one
        schedule=Schedule(kind="step", warmup=100 if steps == 500 else 500),
        clip=0.0,
        augment=Augmentation(crop=None, precrop=resized, mixup=0.1 if data.images >= SMALL else 0.0),
    )
