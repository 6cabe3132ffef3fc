// What a browser keeps for us: of this tab, and of all. One that is told to keep nothing refuses even to be asked; then it
// is forgotten with the page.

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
