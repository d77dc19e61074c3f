"""What a page is for people who see little, or use no mouse: contrast, names of controls, the way of the Tab key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# WCAG 2: 4.5 for text, 3 where it is large. What is seen behind a text is the nearest painted ground.
CONTRAST = """() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => numbers(colour).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = element => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if ((numbers(colour)[3] ?? 1) === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const poor = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const [dark, bright] = [light(style.color), light(ground(element))].sort((a, b) => a - b);
        const ratio = (bright + 0.05) / (dark + 0.05), large = parseFloat(style.fontSize) >= 24;
        if (ratio < (large ? 3 : 4.5)) poor.push(`${texts.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return poor;
}"""

FOCUSED = """() => {
    const at = document.activeElement;
    const outlined = at.type === "radio" ? at.nextElementSibling : at;
    if (at !== document.body && getComputedStyle(outlined).outlineStyle !== "solid") return `${at.id}: no outline`;
    return at === document.body ? "" : at.id || at.value || at.localName;
}"""


def tab_through(page: Page) -> list[str]:
    """What has the focus after each Tab from the page's top on, each with a visible outline."""
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    reached: list[str] = []
    while len(reached) < 50:
        page.keyboard.press("Tab")
        name = page.evaluate(FOCUSED)
        if not name:
            break
        reached.append(name)
    return reached


def unnamed(page: Page) -> list[str]:
    """Roles of what can have the focus and no name that a screen reader could say, by the browser's own reckoning."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    controls = [
        node
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] != "RootWebArea"
        and any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", []))
    ]
    assert len(controls) >= 10
    return [node["role"]["value"] for node in controls if not node.get("name", {}).get("value", "").strip()]
