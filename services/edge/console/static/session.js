// Ids of the requests of this tab; the images stay on the server.

import { ofTab } from "./kept.js";

const KEY = "pentimento.generated";
const MOST = 100;

export function generated() {
  try {
    return JSON.parse(ofTab.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

export function noteGenerated(requestId) {
  const ids = [requestId, ...generated().filter((id) => id !== requestId)].slice(0, MOST);
  ofTab.setItem(KEY, JSON.stringify(ids));
}
