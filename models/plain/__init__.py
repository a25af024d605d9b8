"""Plain networks in words: read, described, rebuilt, and made smaller."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .description import DescriptionError, describe, fill, rebuild, state
    from .feature_choice import is_select, select, selected_dim
    from .layer_kinds import CONVS, LAYERS, TRANSPOSED, as_layers, layer_kind
    from .named_tensors import check_same, checked_shape, tensors_of
    from .norms import NORMS, PaddedLayerNorm
    from .own_classes import torch_only
    from .pruned import PrunedNetwork
    from .surgery import (
        CHANNELWISE,
        Edit,
        Plan,
        is_leaf,
        output_dim,
        resized,
        rows_first,
        shrink,
        shrunk,
        trace,
    )
    from .untrusted import NotJSON, parsed, plain_words
    from .vocabulary import MODULES, dtype_named

__getattr__, __dir__ = lazy_names(__name__)
