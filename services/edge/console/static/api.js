// Calls of this deployment's data. The token, if any, is sent as a header and never as a cookie: no other page can use it.

import { ofTab } from "./kept.js";

const TOKEN = "pentimento.token";

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the answer was ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
    this.field = error?.param ?? "";
  }
}

export const token = () => ofTab.getItem(TOKEN) ?? "";

export function keepToken(value) {
  if (value) ofTab.setItem(TOKEN, value);
  else ofTab.removeItem(TOKEN);
}

/** Throw the error of an answer. A token that is unknown, and not replaced since it was sent, opens the sign-in dialog. */
function refuse(status, error, sent) {
  if (status === 401 && sent === token()) window.dispatchEvent(new Event("pentimento:sign-in"));
  throw new ApiError(status, error);
}

async function call(path, body, signal) {
  const headers = {};
  const sent = token();
  // A browser rejects other characters in a header, with the same error as for an unreachable deployment.
  if (/[^ -~]/.test(sent)) refuse(401, { message: "a token has only printable ASCII characters", code: "MALFORMED_TOKEN" }, sent);
  if (sent) headers.Authorization = `Bearer ${sent}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let answer;
  try {
    answer = await fetch(`/console/data/${path}`, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "this deployment cannot be reached", code: "UNREACHABLE" });
  }
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => null);
  return refuse(answer.status, document?.error, sent);
}

export const get = async (path, signal) => (await call(path, undefined, signal)).json();
export const post = async (path, body, signal) => (await call(path, body, signal)).json();

const images = new Map();
const MAX_IMAGES = 200;

/** Return the address of an image's bytes inside this page, loaded once. The least recently used ones are freed. */
export function imageOf(requestId) {
  const known = images.get(requestId);
  if (known) {
    images.delete(requestId);
    images.set(requestId, known);
  } else {
    const loading = call(`requests/${encodeURIComponent(requestId)}/image`).then(async (answer) => URL.createObjectURL(await answer.blob()));
    loading.catch(() => images.delete(requestId));
    images.set(requestId, loading);
    if (images.size > MAX_IMAGES) {
      const [oldest, address] = images.entries().next().value;
      images.delete(oldest);
      address.then(URL.revokeObjectURL, () => {});
    }
  }
  return images.get(requestId);
}

/** Yield the events of a stream: {event, data}. Aborting the signal ends the request. */
export async function* events(path, body, signal) {
  const answer = await call(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  // A large image arrives in hundreds of pieces: each is scanned once.
  let line = [];
  let block = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const [first, ...others] = value.split("\n");
      line.push(first);
      for (const next of others) {
        block.push(line.join(""));
        line = [next];
        if (block.at(-1)) continue;
        const event = parse(block);
        block = [];
        if (event?.event === "error") throw new ApiError(0, event.data.error);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(lines) {
  let event = "message";
  let data = "";
  for (const line of lines) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return data ? { event, data: JSON.parse(data) } : null;
}

export function blobOf(base64, type) {
  const binary = atob(base64);
  const data = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) data[index] = binary.charCodeAt(index);
  return new Blob([data], { type });
}

export async function base64Of(file) {
  const data = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let index = 0; index < data.length; index += 0x8000) binary += String.fromCharCode(...data.subarray(index, index + 0x8000));
  return btoa(binary);
}
