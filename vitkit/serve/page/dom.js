// Elements, found and made.

export const at = id => document.getElementById(id);

export const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
