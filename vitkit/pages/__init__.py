"""The parts that the HTML pages of inspect and report share: the template, inline images and inline SVG."""
