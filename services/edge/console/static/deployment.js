// The deployment's models, LoRAs, ControlNets and parts. The console does not show the parts that it lacks.

import { get } from "./api.js";

const FRESH_MS = 10_000;
let loading = null;
let askedAt = 0;

/** Return {models, adapters, features: {cache, controller, listing}}, at most 10 s old: workers come and go. */
export function deployment() {
  const now = performance.now();
  if (loading === null || now - askedAt > FRESH_MS) {
    askedAt = now;
    loading = get("deployment").catch((error) => { loading = null; throw error; });
  }
  return loading;
}

/** Forget the deployment, after the token changed. */
export function forgetDeployment() {
  loading = null;
}

/** Return the LoRAs or ControlNets that fit a model. */
export function adaptersFor(known, model, kind) {
  return known.adapters.filter((adapter) =>
    adapter.kind === kind && adapter.family === model.family && (!adapter.base_digest || adapter.base_digest === model.digest));
}
