"""The head of PLA: a recurrent decoder with attention that emits one label after another."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import relu, rms_norm

from probmcl.runtime.precision import full_precision

ODDS = 9.0
"""An emitted label has a probability of at least 0.9 (odds of 9), any other one of at most 0.1."""

State = tuple[Tensor, Tensor]
"""The state of an LSTM: h and c, both (N, H)."""


class AdditiveAttention(nn.Module):
    """The mean of a map's positions, weighted by additive attention to a query.

    context = Σ_p a_p x_p with a = softmax over positions of v · relu(W x_p + U h), where x_p are the positions and h is
    the query. W x_p are the `keys`, which all queries of an image share.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020, and its code, which
    has a ReLU where additive attention usually has tanh.

    >>> attention = AdditiveAttention(channels=5, query=4, width=8)
    >>> positions = torch.zeros(2, 49, 5)
    >>> attention(positions, attention.keys(positions), torch.zeros(2, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(self, channels: int, query: int, width: int) -> None:
        super().__init__()
        self.keys = nn.Linear(channels, width)
        self.query = nn.Linear(query, width)
        self.weight = nn.Linear(width, 1, bias=False)  # a constant would be the same at every position

    def forward(
        self, positions: Float[Tensor, "N P K"], keys: Float[Tensor, "N P A"], query: Float[Tensor, "N H"]
    ) -> Float[Tensor, "N K"]:
        """Return the context of a query."""
        fit = self.weight(relu(keys + self.query(query)[:, None]))  # (N, P, 1)
        context: Tensor = (fit.softmax(1) * positions).sum(1)
        return context


class LabelDecoder(nn.Module):
    """An LSTM that emits the most probable label at each step and receives it as input at the next.

    (h, c) ← LSTM([e | g ⊙ context(h)], (h, c)),  p = softmax(W h + b), where e is the vector of the label that was
    emitted last (initially that of a start token), g = sigmoid(G h) and context is `AdditiveAttention`. Both h and c
    start as linear functions of the mean of the positions. There are C + 1 answers: the classes, and last the end.
    Decoding continues after the end, so that every image has the same number of steps. In training, too, the input is
    the label that was emitted.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020. There, maps are not
    normalized, and a new dropout mask is drawn at each step.

    Args:
        channels: K of the maps.
        classes: C.
        hidden: size of h and c; `embedding` is the size of a label's vector, `attention` the width of the attention.
        dropout: of the positions, in training.
        normalize: whether the maps of an image are first divided by their root mean square: encoders differ in scale,
            and a cell that starts far from 0 hardly learns.
        repeats: whether a label that was emitted may be emitted again.

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
        self.first_hidden, self.first_cell = nn.Linear(channels, hidden), nn.Linear(channels, hidden)
        self.embedding = nn.Embedding(classes + 2, embedding)  # the classes, the end, the start
        self.attention = AdditiveAttention(channels, hidden, attention)
        self.gate = nn.Linear(hidden, channels)
        self.cell = nn.LSTMCell(embedding + channels, hidden)
        self.answer = nn.Linear(hidden, classes + 1)

    @full_precision
    def forward(
        self, maps: Float[Tensor, "N K h w"], steps: int, allowed: Bool[Tensor, "N C"] | None = None
    ) -> Float[Tensor, "N T E"]:
        """Return log-probabilities of the C classes and the end at each step, −∞ for a class that cannot be emitted.

        Classes that are not `allowed` (by default all are) are never emitted and take no part in the softmax.
        """
        maps = rms_norm(maps, maps.shape[1:]) if self.normalize else maps
        positions = maps.flatten(2).transpose(1, 2)  # (N, P, K)
        pooled, positions = positions.mean(1), self.dropout(positions)
        keys, state = self.attention.keys(positions), (self.first_hidden(pooled), self.first_cell(pooled))
        answers = torch.arange(self.answer.out_features, device=maps.device)
        end = answers[-1]
        emitted = (end + 1).repeat(maps.shape[0])  # the start
        possible = torch.ones_like(emitted[:, None] > answers)
        if allowed is not None:
            possible = torch.cat([allowed, possible[:, -1:]], 1)
        log_probabilities: list[Tensor] = []
        for _ in range(steps):
            state = self._next(emitted, state, positions, keys)
            scores = self.answer(state[0]).masked_fill(~possible, -math.inf)
            log_probabilities.append(scores.log_softmax(1))
            emitted = log_probabilities[-1].argmax(1)  # different scores can have equal log-probabilities
            if not self.repeats:
                possible = possible & ((answers != emitted[:, None]) | (answers == end))
        return torch.stack(log_probabilities, 1)

    def _next(self, emitted: Int[Tensor, " N"], state: State, positions: Tensor, keys: Tensor) -> State:
        hidden, _ = state
        context = self.gate(hidden).sigmoid() * self.attention(positions, keys, hidden)
        next_state: State = self.cell(torch.cat([self.embedding(emitted), context], 1), state)
        return next_state


def emitted_labels(log_probabilities: Float[Tensor, "N T E"]) -> Bool[Tensor, "N C"]:
    """Return the set of labels that a decoder emits: those most probable at some step before the end.

    >>> steps = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]])  # the second, the end, the first
    >>> emitted_labels(steps.log())
    tensor([[False,  True]])
    """
    answers = log_probabilities.argmax(2)  # (N, T)
    end = log_probabilities.shape[2] - 1
    ended = (answers == end).cumsum(1) > 0
    classes = torch.arange(end, device=answers.device)
    return ((answers[..., None] == classes) & ~ended[..., None]).any(1)


def set_logits(log_probabilities: Float[Tensor, "N T E"]) -> Float[Tensor, "N C"]:
    """Return a logit for each class from a decoder that only emits a set of labels.

    odds = 9 / (1−q) for a label that was emitted and q / 9 for any other, where q is the largest probability that the
    class had at any step up to the end. So the probability is above 0.9 or below 0.1, any threshold between the two
    gives the set that was emitted, and q ranks the images within it. Exact for probabilities close to 0 and 1.

    >>> steps = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]])
    >>> set_logits(steps.log()).sigmoid()  # q is 0.2 and 0.7; after the end nothing counts
    tensor([[0.0217, 0.9677]])
    """
    answers, end = log_probabilities.argmax(2, keepdim=True), log_probabilities.shape[2] - 1
    is_end = (answers == end).long()
    past = is_end.cumsum(1) > is_end  # (N, T, 1)
    of_classes, of_end = log_probabilities[..., :-1], log_probabilities[..., -1:]
    emitted = answers == torch.arange(end, device=answers.device)
    # log(1−p): of what is less probable than something else by itself, of the most probable by the sum of all others.
    others = of_classes.masked_fill(emitted, -math.inf)
    rest = torch.cat([others, of_end], 2).logsumexp(2, keepdim=True).where(emitted, (-others.exp()).log1p())
    highest, least_rest = of_classes.masked_fill(past, -math.inf).amax(1), rest.masked_fill(past, 0).amin(1)
    apart = math.log(ODDS)
    return (apart - least_rest).where(emitted_labels(log_probabilities), highest - apart)
