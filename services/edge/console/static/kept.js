// The browser's storage: for this tab, and for all. A browser that blocks storage throws on access; then values last as
// long as the page.

function storage(name) {
  try {
    return window[name];
  } catch {
    const held = new Map();
    return { getItem: (key) => held.get(key) ?? null, setItem: (key, value) => held.set(key, value), removeItem: (key) => held.delete(key) };
  }
}

export const ofTab = storage("sessionStorage");
export const ofAll = storage("localStorage");
