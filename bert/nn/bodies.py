"""The bodies in torch."""

from collections.abc import Callable

from bert.bodies.bert import BertBody
from bert.bodies.body import Body
from bert.bodies.deberta import DebertaBody
from bert.bodies.modern import ModernBody
from bert.bodies.mpnet import MpnetBody
from bert.bodies.rotary import RotaryBody
from bert.config import BertConfig
from bert.nn.bert import BertModel
from bert.nn.deberta import DebertaModel
from bert.nn.encoder import Encoder
from bert.nn.modern import ModernModel
from bert.nn.mpnet import MpnetModel
from bert.nn.rotary import RotaryModel

ENCODERS: dict[type[Body], Callable[..., Encoder]] = {
    BertBody: BertModel,
    MpnetBody: MpnetModel,
    DebertaBody: DebertaModel,
    ModernBody: ModernModel,
    RotaryBody: RotaryModel,
}


def make_encoder(config: BertConfig, *, pooler: bool) -> Encoder:
    """Make a config's body with fresh weights, with a pooler where one is asked for and the body has one."""
    return ENCODERS[type(config.body)](config, pooler=pooler)
