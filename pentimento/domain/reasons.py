"""Reasons that one process gives and another acts on: each with what it means, and what to do about it."""

from enum import StrEnum


class Reason(StrEnum):
    """A reason of an error or of a request's end. Its value is its name, which travels and is journalled."""

    meaning: str
    advice: str

    def __new__(cls, value: str, meaning: str, advice: str) -> "Reason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.advice = meaning, advice
        return member

    ANCESTOR_GONE = (
        "ANCESTOR_GONE",
        "the latent or image that the replayed image started from is deleted or changed",
        "none; images from noise can be replayed while their request is known",
    )
    ATTEMPT_GONE = (
        "ATTEMPT_GONE",
        "the worker does not hold that attempt (any longer)",
        "none: the frontdoor runs the request again",
    )
    BAD_LORA = (
        "BAD_LORA",
        "a LoRA's file is damaged or was replaced",
        "use another LoRA; upload it again, or repair the file and restart the worker",
    )
    BAD_SIGNATURE = (
        "BAD_SIGNATURE",
        "an entry was changed after it was signed, or is that of another component",
        "see what changed, then sign it again",
    )
    CELL_UNAVAILABLE = (
        "CELL_UNAVAILABLE",
        "the tenant's cell, or a former one that may have a request with the same idempotency key, does not answer",
        "retry with the same key; start the cell again, or remove it from `cell-lists` once its requests may be lost",
    )
    CLIENT_LEFT = (
        "CLIENT_LEFT",
        "the request was cancelled because its client's connection broke",
        "retry with a new idempotency key; the SDK does",
    )
    CONTROLNET_FULL = (
        "CONTROLNET_FULL",
        "every replica of a ControlNet is full",
        "none: the frontdoor retries until the deadline; add ControlNet replicas if it persists",
    )
    CONTROLNET_LOST = (
        "CONTROLNET_LOST",
        "no replica serves a ControlNet of the request; the image is not generated without it",
        "check the ControlNet replicas, then retry",
    )
    DEVICE_OUT_OF_MEMORY = (
        "DEVICE_OUT_OF_MEMORY",
        "the device had no memory for the image",
        "none at first: the frontdoor tries another worker; request smaller images if it persists",
    )
    DISCRIMINATOR_OF_OTHER_CASCADE = (
        "DISCRIMINATOR_OF_OTHER_CASCADE",
        "a discriminator was trained for the images of other models",
        "name the directory that `pentimento discriminator train` wrote for this cascade",
    )
    DISCRIMINATOR_UNINFORMATIVE = (
        "DISCRIMINATOR_UNINFORMATIVE",
        "the interval of a discriminator's AUROC includes 0.5: a cascade with it would defer at random",
        "train one with more pairs (`pentimento discriminator train`), or serve without the cascade",
    )
    DRAINING = (
        "DRAINING",
        "the process is stopping and takes nothing new",
        "retry after RetryInfo's time, or call another replica",
    )
    EFFECT_FAILED = (
        "EFFECT_FAILED",
        "a defect of the frontdoor ended the request",
        "see the frontdoor's log; a retry may help",
    )
    FLEET_UNKNOWN = (
        "FLEET_UNKNOWN",
        "the controller has just started and does not know the fleet's demand yet",
        "retry after RetryInfo's time; an autoscaler keeps its replicas meanwhile",
    )
    INPUT_UNAVAILABLE = (
        "INPUT_UNAVAILABLE",
        "an input image, or the start of a replay, cannot be read now",
        "check the object store, then retry",
    )
    LORA_MISMATCH = (
        "LORA_MISMATCH",
        "a LoRA changes layers that the model does not have",
        "use one made for the model",
    )
    MESSAGE_TOO_LARGE = (
        "MESSAGE_TOO_LARGE",
        "the message or HTTP body exceeds its limit, or the image that of its client",
        "do not retry: send a smaller image; receive a larger one by Attach with max_message_bytes",
    )
    NO_IMAGE_TOWER = (
        "NO_IMAGE_TOWER",
        "the encoder embeds texts only; images are neither stored for reuse nor compared",
        "none, or serve a CLIP or SigLIP directory",
    )
    POOL_NOT_ALLOWED = (
        "POOL_NOT_ALLOWED",
        "the tenant may not use the pool of the requested model",
        "request another model; an operator changes pools with `pentimento tenant set`",
    )
    PREDICTED_LATE = (
        "PREDICTED_LATE",
        "the request would miss its deadline",
        "use a later deadline, or retry after RetryInfo's time; add workers if it persists",
    )
    PROFILE_MISSING = (
        "PROFILE_MISSING",
        "a model has no measured cost on the available devices, so the policy cannot plan it",
        "measure it with `pentimento profile cost`, then start with `--profiles FILE` or "
        "register it with the model; workers keep their models until then",
    )
    REPLICA_ADDRESS_TAKEN = (
        "REPLICA_ADDRESS_TAKEN",
        "a live replica that started later advertises the same address",
        "give each replica its own address; in containers leave `advertise_address` empty",
    )
    REPLICA_SUPERSEDED = (
        "REPLICA_SUPERSEDED",
        "a later start of the same instance id is live",
        "none after a restart; otherwise give each its own instance id (`{hostname}`)",
    )
    REQUEST_ELSEWHERE = (
        "REQUEST_ELSEWHERE",
        "another frontdoor works on the request",
        "retry after RetryInfo's time: it is taken over or ends",
    )
    SAFETY_UNAVAILABLE = (
        "SAFETY_UNAVAILABLE",
        "no classifier of prompts or images gives a verdict; nothing is returned without one",
        "check the discriminator's log and `safety_checks`, then retry",
    )
    STALE_ENTRY = (
        "STALE_ENTRY",
        "the host has seen a later signed entry of that name, with another digest",
        "sign the earlier one again to return to it",
    )
    STALE_EPOCH = (
        "STALE_EPOCH",
        "the worker knows a newer frontdoor, or the same one with a newer journal",
        "none after a takeover; after a lost or restored journal `pentimento journal renew`",
    )
    STANDBY = (
        "STANDBY",
        "this frontdoor or controller is a standby",
        "call the active one, or retry after RetryInfo's time",
    )
    SUPERSEDED = (
        "SUPERSEDED",
        "another frontdoor took over, or another stream of the attempt was opened",
        "retry after RetryInfo's time",
    )
    TENANT_QUOTA = (
        "TENANT_QUOTA",
        "the request exceeds a quota of its tenant; message and `quota` in ErrorInfo have name and limit",
        "retry after RetryInfo's time; without one the request never fits: request less",
    )
    TOKEN_REQUIRED = (
        "TOKEN_REQUIRED",
        "the call needs a token",
        'send metadata "authorization: Bearer TOKEN"; commands take `--token`',
    )
    UNKNOWN_SIGNING_KEY = (
        "UNKNOWN_SIGNING_KEY",
        "the process does not have the public key of an entry's signature, or cannot read its file of keys",
        "sign it with a known key, or add the public key to the file",
    )
    UNREADABLE_REQUEST = (
        "UNREADABLE_REQUEST",
        "the journal holds a request that this version cannot read",
        "run the version that accepted it until its requests have ended",
    )
    UNSAFE_IMAGE = (
        "UNSAFE_IMAGE",
        "the deployment's classifier calls the image unsafe; the status has the SafetyVerdict",
        "another prompt or seed; the image is neither returned nor stored",
    )
    UNSAFE_PROMPT = (
        "UNSAFE_PROMPT",
        "the deployment's classifier calls the prompt unsafe; the status has the SafetyVerdict",
        "another prompt",
    )
    UNSIGNED_ENTRY = (
        "UNSIGNED_ENTRY",
        "the process has public keys, and a model, LoRA or ControlNet has no signature",
        "sign its entry: `pentimento models sign`, or `adapters add --signing-key` once more",
    )
    UNSUPPORTED_LORA = (
        "UNSUPPORTED_LORA",
        "a LoRA has a form that is not read (OFT, IA3, differences of whole weights, embeddings inside)",
        "use a LoRA, LoHa, LoKr or DoRA, or extract a LoRA from it",
    )
    WORKER_LOST = (
        "WORKER_LOST",
        "every worker that ran the request was lost",
        "retry; see the workers' logs if it happens to one request only",
    )
    WRONG_CELL = (
        "WRONG_CELL",
        "another cell serves the tenant, or has the request; the metadata name it and its address",
        "call that address; the SDK and the edge do",
    )
    WORKER_STOPPED = (
        "WORKER_STOPPED",
        "the worker stopped before the image was done",
        "none: the frontdoor runs the request again",
    )
