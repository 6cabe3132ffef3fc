"""Derive the settings of the frontdoor's parts from those of the process."""

from pentimento.dataplane import DataplaneSettings
from pentimento.policies.latent_pairing import TIGHT_SHARE, PairingMode
from pentimento.policies.residual_pipelining import PipeliningRule
from pentimento.profiles.catalogue import HandoverProfiles, ReusePromise, StepProfiles, read_profiles
from pentimento.profiles.document import ProfileKind
from services.frontdoor.journal.retention import RetentionLimits
from services.frontdoor.objects.object_keeper import KeepingLimits
from services.frontdoor.parts import PartTimeouts
from services.frontdoor.quality.shadows import ShadowSettings
from services.frontdoor.requests.pins import PinLimits
from services.frontdoor.requests.quotas import QuotaLimits
from services.frontdoor.requests.resolution import RequestLimits
from services.frontdoor.requests.selections import SelectionLimits
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.pipelining import ControlPipelining
from services.frontdoor.routing.thinning import ThinningOffers
from services.frontdoor.settings import FrontdoorSettings


def dataplane_settings(settings: FrontdoorSettings) -> DataplaneSettings:
    return DataplaneSettings(
        queue_limit=settings.queue_limit,
        drop_late=settings.drop_late,
        confidence_threshold=settings.confidence_threshold,
        accept_unscored=settings.accept_unscored,
        fall_back=settings.fall_back,
        skip_light_below=settings.skip_light_below,
        thinning=settings.thinning,
        adapter_load_s=settings.adapter_load_s,
        pair_tight_share=None if settings.latent_parallel is PairingMode.ALWAYS else TIGHT_SHARE,
        max_reruns=settings.max_reruns,
        suspect_wait_s=settings.suspect_wait_s,
        orphan_wait_s=settings.orphan_wait_s,
    )


def thinning_offers(settings: FrontdoorSettings) -> ThinningOffers:
    """Return which steps may be skipped. Raises InvalidArgument naming a file that is no profile."""
    return ThinningOffers(settings.thinning, step_profiles(settings), settings.cached_thinned_share)


def step_profiles(settings: FrontdoorSettings, kind: ProfileKind = ProfileKind.STEPS) -> StepProfiles:
    rule = settings.profile_rule.rule
    return StepProfiles(read_profiles(settings.profiles), settings.thinning_alpha, rule, kind)


def light_starts(settings: FrontdoorSettings) -> LightStarts:
    """Return how later stages start from earlier images. Raises InvalidArgument naming a file that is no profile."""
    promise = ReusePromise(settings.handover_alpha, settings.profile_rule.rule)
    return LightStarts(settings.handover, HandoverProfiles(read_profiles(settings.profiles), promise))


def control_pipelining(settings: FrontdoorSettings) -> ControlPipelining:
    """Return when residuals may be one step old. Raises InvalidArgument naming a file that is no profile."""
    rule = PipeliningRule(settings.controlnet_pipelining, settings.controlnet_wait_share)
    return ControlPipelining(rule, read_profiles(settings.profiles))


def part_timeouts(settings: FrontdoorSettings) -> PartTimeouts:
    return PartTimeouts(
        embed_s=settings.embed_timeout_ms / 1000,
        lookup_s=settings.lookup_timeout_ms / 1000,
        reserve_s=settings.reserve_timeout_ms / 1000,
        score_s=settings.score_timeout_ms / 1000,
        foresee_s=settings.foresee_timeout_ms / 1000,
    )


def shadow_settings(settings: FrontdoorSettings) -> ShadowSettings:
    return ShadowSettings(
        sample_share=settings.quality_sample_share,
        trial_share=settings.quality_trial_share,
        work_share=settings.quality_work_share,
        quiet_s=settings.quality_quiet_s,
        gives_way=settings.quality_gives_way,
    )


def request_limits(settings: FrontdoorSettings) -> RequestLimits:
    return RequestLimits(
        max_prompt_bytes=settings.max_prompt_bytes,
        max_request_cost=settings.max_request_cost,
        max_init_image_bytes=settings.max_init_image_bytes,
        max_images=settings.max_images,
        default_deadline_ms=round(settings.default_deadline_s * 1000),
        deadline_factor=settings.default_deadline_factor,
        max_deadline_ms=round(settings.max_deadline_s * 1000),
        job_deadline_ms=round(min(settings.job_deadline_s, settings.max_deadline_s) * 1000),
        selections=SelectionLimits(
            max_loras=settings.max_loras,
            max_controlnets=settings.max_controlnets,
            max_conditioning_image_bytes=settings.max_conditioning_image_bytes,
        ),
    )


def keeping_limits(settings: FrontdoorSettings) -> KeepingLimits:
    return KeepingLimits(
        put_timeout_s=settings.store_timeout_ms / 1000,
        spool_bytes=settings.spool_bytes,
        tenant_spool_bytes=settings.tenant_spool_bytes,
    )


def quota_limits(settings: FrontdoorSettings) -> QuotaLimits:
    return QuotaLimits(
        tenant_unfinished_requests=settings.tenant_unfinished_requests,
        tenant_unfinished_bytes=settings.tenant_unfinished_bytes,
        min_free_bytes=settings.min_free_bytes,
    )


def pin_limits(settings: FrontdoorSettings) -> PinLimits:
    return PinLimits(max_pin_ms=round(settings.max_pin_h * 3_600_000), tenant_pinned_bytes=settings.tenant_pinned_bytes)


def retention_limits(settings: FrontdoorSettings) -> RetentionLimits:
    return RetentionLimits(
        retention_s=settings.result_retention_h * 3600,
        tenant_result_bytes=settings.tenant_result_bytes,
        tenant_finished_requests=settings.tenant_finished_requests,
        sweep_interval_s=settings.sweep_interval_s,
    )
