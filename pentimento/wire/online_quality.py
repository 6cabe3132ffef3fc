"""What hits were seen to keep, beside pentimento.domain.online_quality."""

from dataclasses import asdict

from pentimento.api.generation.v1 import generation_pb2 as pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.domain.online_quality import AchievedQuality, PaintedAgain, ReuseQuality


def painted_again_to_proto(seen: PaintedAgain) -> gateway_pb.ReportQualityRequest:
    return gateway_pb.ReportQualityRequest(**asdict(seen))


def painted_again_from_proto(message: gateway_pb.ReportQualityRequest) -> PaintedAgain:
    return PaintedAgain(**{name: getattr(message, name) for name in PaintedAgain.__dataclass_fields__})


def reuse_quality_to_proto(quality: ReuseQuality) -> pb.ReuseQuality:
    fields = asdict(quality)
    achieved = pb.AchievedQuality(**fields.pop("achieved")) if quality.achieved is not None else None
    return pb.ReuseQuality(**{name: value for name, value in fields.items() if name != "achieved"}, achieved=achieved)


def reuse_quality_from_proto(message: pb.ReuseQuality) -> ReuseQuality:
    plain = [name for name in ReuseQuality.__dataclass_fields__ if name != "achieved"]
    achieved = _achieved(message.achieved) if message.HasField("achieved") else None
    return ReuseQuality(**{name: getattr(message, name) for name in plain}, achieved=achieved)


def _achieved(message: pb.AchievedQuality) -> AchievedQuality:
    return AchievedQuality(**{name: getattr(message, name) for name in AchievedQuality.__dataclass_fields__})
