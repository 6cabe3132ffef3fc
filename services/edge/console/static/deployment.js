// What this deployment can do: its models, LoRAs and ControlNets, and which parts it has. What it lacks is not shown.

import { get } from "./api.js";

const FRESH_MS = 10_000;
let loading = null;
let askedAt = 0;

/** {models, adapters, features: {cache, controller, listing}}, not older than some seconds: workers come and go. */
export function deployment() {
  const now = performance.now();
  if (loading === null || now - askedAt > FRESH_MS) {
    askedAt = now;
    loading = get("deployment").catch((error) => { loading = null; throw error; });
  }
  return loading;
}

/** After another token was given. */
export function forgetDeployment() {
  loading = null;
}

/** LoRAs or ControlNets that are made for the model. */
export function adaptersFor(known, model, kind) {
  return known.adapters.filter((adapter) =>
    adapter.kind === kind && adapter.family === model.family && (!adapter.base_digest || adapter.base_digest === model.digest));
}
