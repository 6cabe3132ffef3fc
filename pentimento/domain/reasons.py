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
        "the latent or image that a replayed picture started from is not kept any more, or is not what it was",
        "nothing brings it back; a picture that starts from noise can be replayed for as long as its request is known",
    )
    ATTEMPT_GONE = (
        "ATTEMPT_GONE",
        "the worker does not hold that attempt (any more)",
        "nothing: the frontdoor runs the request again",
    )
    BAD_LORA = (
        "BAD_LORA",
        "the file of a LoRA of the request is unsound, or another one by now",
        "name another LoRA; upload it again, or mend its file and start the worker anew",
    )
    CLIENT_LEFT = (
        "CLIENT_LEFT",
        "the request was cancelled because the connection of its client broke",
        "ask again, under a new idempotency key; the SDK does so by itself",
    )
    CONTROLNET_FULL = (
        "CONTROLNET_FULL",
        "every replica of a ControlNet of the request is full now",
        "nothing: the frontdoor runs the request again until its deadline; where it stays, add ControlNet replicas",
    )
    CONTROLNET_LOST = (
        "CONTROLNET_LOST",
        "no replica serves a ControlNet of the request now; the picture is not painted without it",
        "look at the ControlNet replicas; ask again once one is there",
    )
    DEVICE_OUT_OF_MEMORY = (
        "DEVICE_OUT_OF_MEMORY",
        "the device had no memory for the picture",
        "nothing at first: the frontdoor tries another worker; where it stays, ask for smaller pictures",
    )
    DRAINING = (
        "DRAINING",
        "the process is stopping and takes nothing new",
        "call again after the time that RetryInfo names, or another replica",
    )
    EFFECT_FAILED = (
        "EFFECT_FAILED",
        "a defect of the frontdoor ended the request",
        "look at the frontdoor's log; asking again may help",
    )
    INPUT_UNAVAILABLE = (
        "INPUT_UNAVAILABLE",
        "an image that the request came with, or what a replay starts from, cannot be read now",
        "look at the object store; ask again once it is there",
    )
    LORA_MISMATCH = (
        "LORA_MISMATCH",
        "a LoRA of the request changes layers that the model does not have",
        "name one that was made for the model",
    )
    MESSAGE_TOO_LARGE = (
        "MESSAGE_TOO_LARGE",
        "the message, or the body over HTTP, is larger than its call takes; or the image than its client receives",
        "coming again does not help: send a smaller image; receive a larger one by Attach with max_message_bytes",
    )
    NO_IMAGE_TOWER = (
        "NO_IMAGE_TOWER",
        "the encoder embeds texts alone; pictures are neither kept for reuse nor compared",
        "nothing, or serve a CLIP directory as the encoder",
    )
    POOL_NOT_ALLOWED = (
        "POOL_NOT_ALLOWED",
        "the tenant may not use the pool that paints with the model that the request names",
        "name another model; an operator changes the tenant's pools by `pentimento tenant set`",
    )
    PREDICTED_LATE = (
        "PREDICTED_LATE",
        "the request would miss its deadline",
        "give a later deadline, or call again after the time that RetryInfo names; add workers where it stays",
    )
    PROFILE_MISSING = (
        "PROFILE_MISSING",
        "nobody has measured what a model costs on the devices that are there, so the policy cannot plan with it",
        "measure it with `pentimento bench profile`, and start with `--profile FILE` or register it with the model;"
        " until then the workers keep the models that they hold",
    )
    REPLICA_ADDRESS_TAKEN = (
        "REPLICA_ADDRESS_TAKEN",
        "another live replica, which started later, advertises the same address",
        "give each replica an address of its own: no `advertise_address` in containers, where the host's name is taken",
    )
    REPLICA_SUPERSEDED = (
        "REPLICA_SUPERSEDED",
        "a later start of the same instance id is live",
        "nothing after a restart; where both are to run, give each an instance id of its own (`{hostname}` in it)",
    )
    REQUEST_ELSEWHERE = (
        "REQUEST_ELSEWHERE",
        "another frontdoor works on the request",
        "call again after the time that RetryInfo names: it is taken over, or it ends",
    )
    STALE_EPOCH = (
        "STALE_EPOCH",
        "the worker knows a newer frontdoor, or the same one over a newer journal",
        "nothing where a standby has taken over; after a lost or restored journal, `pentimento journal renew`",
    )
    STANDBY = (
        "STANDBY",
        "this frontdoor or controller waits for the lease of the active one",
        "call the active one, or again after the time that RetryInfo names",
    )
    SUPERSEDED = (
        "SUPERSEDED",
        "another frontdoor has taken over, or another stream of the same attempt was opened",
        "call again after the time that RetryInfo names",
    )
    TENANT_QUOTA = (
        "TENANT_QUOTA",
        "the request is over a quota of its tenant: the message and `quota` in ErrorInfo name which, and its limit",
        "call again after the time that RetryInfo names; where there is none, ask for less: it would never be accepted",
    )
    TOKEN_REQUIRED = (
        "TOKEN_REQUIRED",
        "the call needs a token, and has none",
        'send metadata "authorization: Bearer TOKEN"; the command takes `--token`',
    )
    UNREADABLE_REQUEST = (
        "UNREADABLE_REQUEST",
        "the journal holds a request that this version does not understand",
        "run the version that accepted it until its requests have ended",
    )
    UNSUPPORTED_LORA = (
        "UNSUPPORTED_LORA",
        "a LoRA is of another form than two factors and an alpha for each layer: DoRA, LoHa, LoKr, Tucker",
        "name a plain LoRA, or extract one from it",
    )
    WORKER_LOST = (
        "WORKER_LOST",
        "every worker that the request ran on was lost",
        "ask again; look at the workers' logs where it happens to one request alone",
    )
    WORKER_STOPPED = (
        "WORKER_STOPPED",
        "the worker stopped before the picture was done",
        "nothing: the frontdoor runs the request again",
    )
