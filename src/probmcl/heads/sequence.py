"""PLA head: a recurrent decoder with attention that emits one label per step."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import relu, rms_norm

from probmcl.runtime.precision import full_precision

ODDS = 9.0
"""Odds of 9 give emitted labels a probability of at least 0.9 and other labels at most 0.1."""

State = tuple[Tensor, Tensor]
"""LSTM state: h and c, both of shape (N, H)."""


class AdditiveAttention(nn.Module):
    """Additive attention of a query over the positions of a map.

    context = Σ_p a_p x_p with a = softmax over positions of v · relu(W x_p + U h), where x_p are the positions and h is
    the query. The `keys` W x_p are shared by all queries of an image.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020. Its code uses ReLU
    instead of the usual tanh.

    >>> attention = AdditiveAttention(channels=5, query=4, width=8)
    >>> positions = torch.zeros(2, 49, 5)
    >>> attention(positions, attention.keys(positions), torch.zeros(2, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(self, channels: int, query: int, width: int) -> None:
        super().__init__()
        self.keys = nn.Linear(channels, width)
        self.query = nn.Linear(query, width)
        self.weight = nn.Linear(width, 1, bias=False)  # softmax would cancel a bias

    def forward(
        self, positions: Float[Tensor, "N P K"], keys: Float[Tensor, "N P A"], query: Float[Tensor, "N H"]
    ) -> Float[Tensor, "N K"]:
        """Return the context of a query."""
        projected_query = self.query(query)[:, None]  # (N, 1, A)
        scores = self.weight(relu(keys + projected_query))  # (N, P, 1)
        attention = scores.softmax(1)
        context: Tensor = (attention * positions).sum(1)
        return context


class LabelDecoder(nn.Module):
    """LSTM decoder with greedy decoding: the most probable label at each step is the input to the next.

    (h, c) ← LSTM([e | g ⊙ context(h)], (h, c)),  p = softmax(W h + b), where e is the embedding of the last emitted
    label (initially of a start token), g = sigmoid(G h) and context is `AdditiveAttention`. The initial h and c are
    linear functions of the mean over positions. There are C + 1 tokens: the classes, followed by the end token.
    Decoding continues after the end token, so all images have the same number of steps. Training also uses the emitted
    label as input (no teacher forcing).

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020, where maps are not
    normalized and a new dropout mask is drawn at each step.

    Args:
        channels: number K of channels in the maps.
        classes: number C of classes.
        hidden: size of h and c; `embedding` is the size of a label embedding, and `attention` is the attention width.
        dropout: dropout rate for the positions.
        normalize: divide the maps of an image by their root mean square. Encoders differ in scale, and an LSTM with a
            large initial cell state barely learns.
        repeats: allow a label to be emitted more than once.

    >>> decoder = LabelDecoder(channels=5, classes=3)
    >>> decoder(torch.zeros(2, 5, 7, 7), steps=4).exp().sum(2).allclose(torch.ones(2, 4))
    True
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        hidden: int = 512,
        embedding: int = 256,
        attention: int = 512,
        dropout: float = 0.5,
        normalize: bool = True,
        repeats: bool = False,
    ) -> None:
        super().__init__()
        self.normalize, self.repeats = normalize, repeats
        self.dropout = nn.Dropout(dropout)
        self.first_hidden = nn.Linear(channels, hidden)
        self.first_cell = nn.Linear(channels, hidden)
        self.embedding = nn.Embedding(classes + 2, embedding)  # classes, end token, start token
        self.attention = AdditiveAttention(channels, hidden, attention)
        self.gate = nn.Linear(hidden, channels)
        self.cell = nn.LSTMCell(embedding + channels, hidden)
        self.answer = nn.Linear(hidden, classes + 1)

    @full_precision
    def forward(
        self, maps: Float[Tensor, "N K h w"], steps: int, allowed: Bool[Tensor, "N C"] | None = None
    ) -> Float[Tensor, "N T E"]:
        """Return log-probabilities of the C classes and the end token at each step, with −∞ for excluded classes.

        Classes that are not `allowed` (by default, all are) are excluded from the softmax and never emitted.
        """
        if self.normalize:
            maps = rms_norm(maps, maps.shape[1:])
        positions = maps.flatten(2).transpose(1, 2)  # (N, P, K)
        mean = positions.mean(1)
        positions = self.dropout(positions)
        keys = self.attention.keys(positions)
        state = (self.first_hidden(mean), self.first_cell(mean))

        tokens = torch.arange(self.answer.out_features, device=maps.device)  # the C classes and the end token
        end = tokens[-1]
        start = end + 1  # has an embedding, but is never emitted
        emitted = start.repeat(maps.shape[0])  # (N,)
        available = torch.ones_like(emitted[:, None] == tokens)  # (N, C + 1)
        if allowed is not None:
            available = torch.cat([allowed, available[:, -1:]], 1)  # the end token is always available

        steps_so_far: list[Tensor] = []
        for _ in range(steps):
            state = self._next_state(state, emitted, positions, keys)
            hidden, _ = state
            scores = self.answer(hidden).masked_fill(~available, -math.inf)
            log_probabilities = scores.log_softmax(1)
            steps_so_far.append(log_probabilities)
            # Different scores can round to equal log-probabilities. `emitted_labels` takes this maximum, too.
            emitted = log_probabilities.argmax(1)
            if not self.repeats:
                available = available & ((tokens != emitted[:, None]) | (tokens == end))
        return torch.stack(steps_so_far, 1)

    def _next_state(
        self,
        state: State,
        emitted: Int[Tensor, " N"],
        positions: Float[Tensor, "N P K"],
        keys: Float[Tensor, "N P A"],
    ) -> State:
        """Return the LSTM state after the last emitted token and the gated context have been read."""
        hidden, _ = state
        context = self.gate(hidden).sigmoid() * self.attention(positions, keys, hidden)
        inputs = torch.cat([self.embedding(emitted), context], 1)
        next_state: State = self.cell(inputs, state)
        return next_state


def emitted_labels(log_probabilities: Float[Tensor, "N T E"]) -> Bool[Tensor, "N C"]:
    """Return the set of emitted labels, which are the most probable tokens at the steps before the end token.

    >>> steps = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]])  # second label, end, first label
    >>> emitted_labels(steps.log())
    tensor([[False,  True]])
    """
    tokens = log_probabilities.argmax(2)  # (N, T)
    end = log_probabilities.shape[2] - 1
    ended = (tokens == end).cumsum(1) > 0  # from the step of the end token on
    classes = torch.arange(end, device=tokens.device)
    emitted = (tokens[..., None] == classes) & ~ended[..., None]  # (N, T, C)
    return emitted.any(1)


def set_logits(log_probabilities: Float[Tensor, "N T E"]) -> Float[Tensor, "N C"]:
    """Return one logit per class for the set of labels that a decoder emits.

    odds = 9 / (1−q) for an emitted label and q / 9 for any other label, where q is the largest probability of the class
    up to the step of the end token. Probabilities are above 0.9 or below 0.1, so any threshold in between gives the
    emitted set, and q ranks images within and outside it. The result is accurate for q close to 0 or 1.

    >>> steps = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]])
    >>> set_logits(steps.log()).sigmoid()  # q is 0.2 and 0.7; steps after the end are ignored
    tensor([[0.0217, 0.9677]])
    """
    tokens = log_probabilities.argmax(2, keepdim=True)  # (N, T, 1)
    end = log_probabilities.shape[2] - 1
    is_end = (tokens == end).long()
    past = is_end.cumsum(1) > is_end  # steps after the first end token, not the step of that token itself
    class_log_p, end_log_p = log_probabilities[..., :-1], log_probabilities[..., -1:]
    most_probable = tokens == torch.arange(end, device=tokens.device)  # (N, T, C)

    # log(1−p) is log1p(−p) for all but the most probable token, for which it is the log-sum-exp of the others.
    others = class_log_p.masked_fill(most_probable, -math.inf)
    log_sum_of_others = torch.cat([others, end_log_p], 2).logsumexp(2, keepdim=True)
    log_not_p = log_sum_of_others.where(most_probable, (-others.exp()).log1p())

    log_q = class_log_p.masked_fill(past, -math.inf).amax(1)
    log_not_q = log_not_p.masked_fill(past, 0).amin(1)  # log(1−q)
    log_odds = math.log(ODDS)  # log 9
    logit_if_emitted = log_odds - log_not_q
    logit_of_others = log_q - log_odds
    return logit_if_emitted.where(emitted_labels(log_probabilities), logit_of_others)
