// What was painted in this tab: ids alone, the pictures stay where they are.

import { ofTab } from "./kept.js";

const KEY = "pentimento.painted";
const MOST = 100;

export function painted() {
  try {
    return JSON.parse(ofTab.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

export function notePainted(requestId) {
  const ids = [requestId, ...painted().filter((id) => id !== requestId)].slice(0, MOST);
  ofTab.setItem(KEY, JSON.stringify(ids));
}
