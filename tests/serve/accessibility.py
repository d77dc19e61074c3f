"""Accessibility checks of a page: contrast of texts, names of controls, and the order of the Tab key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# WCAG 2: 4.5 for text, 3 for large text. The background of a text is that of its nearest opaque ancestor.
LOW_CONTRAST_TEXTS = """() => {
    const channels = colour => colour.match(/[\\d.]+/g).map(Number);
    const luminance = colour => channels(colour).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const background = element => {
        for (let node = element; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if ((channels(colour)[3] ?? 1) === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const poor = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const [dark, bright] = [luminance(style.color), luminance(background(element))].sort((a, b) => a - b);
        const ratio = (bright + 0.05) / (dark + 0.05), large = parseFloat(style.fontSize) >= 24;
        if (ratio < (large ? 3 : 4.5)) poor.push(`${texts.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return poor;
}"""

FOCUSED_ELEMENT = """() => {
    const active = document.activeElement;
    const outlined = active.type === "radio" ? active.nextElementSibling : active;
    if (active === document.body) return "";
    if (getComputedStyle(outlined).outlineStyle !== "solid") return `${active.id}: no outline`;
    return active.id || active.value || active.localName;
}"""


def tab_through(page: Page) -> list[str]:
    """Return the focused element after each Tab from the top of the page; each must have a visible outline."""
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    reached: list[str] = []
    while len(reached) < 50:
        page.keyboard.press("Tab")
        name = page.evaluate(FOCUSED_ELEMENT)
        if not name:
            break
        reached.append(name)
    return reached


def controls_without_name(page: Page) -> list[str]:
    """Return the roles of focusable elements without a name for screen readers, from the browser's own tree."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    controls = [
        node
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] != "RootWebArea"
        and any(entry["name"] == "focusable" and entry["value"]["value"] for entry in node.get("properties", []))
    ]
    assert len(controls) >= 10
    return [node["role"]["value"] for node in controls if not node.get("name", {}).get("value", "").strip()]
