// What this deployment can do: its models, LoRAs and ControlNets, and which parts it has. What it lacks is not shown.

import { get } from "./api.js";

let loading = null;

/** {models, adapters, features: {cache, controller, listing}} */
export function deployment() {
  loading ??= get("deployment").catch((error) => { loading = null; throw error; });
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
