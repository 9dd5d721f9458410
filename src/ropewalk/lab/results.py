"""Measurements: the records that a trial yields and that ``results.jsonl`` keeps, one a line.

Every record is a JSON object with ``kind`` and, from the trial it belongs to:

    trial      its name, unique in a run: "rope-s0"
    encoding   the name the user gave: "rope(base=500000)"
    task       "text" or the name of a task
    seed, lr   of the trial
    context    everything else that is needed to repeat it: versions, settings, data hash, hardware, command

What the kinds add:

    model      parameters, extra_parameters (more than without an encoding), encodings (one name a layer)
    curve      step, tokens, loss: lists of equal length, mean training loss since the entry before;
               validation_step, validation_loss: lists of equal length
    loss       split ("validation" or "test"), length, last: mean loss in nats over the last `last` tokens of windows of
               `length` tokens; mean; documents: {name: [mean, tokens]}. The scored tokens are the same at every length.
    positions  length, edges (n + 1 positions), loss (n): mean loss of the tokens between two edges of a window
    retrieval  length, depth in [0, 1], metric ("accuracy" in [0, 1]; "nats gained": what knowing the needle saves, for
               models that were trained on text; "margin": nats that the least sure token of an answer is ahead), value, count
    definition length, metric as above, value, count, items: one a question; of `ropewalk extend`, whose `retrieval` has items too
    lm-eval    what (the task), metric (with lm-eval's filter in brackets), value, error (standard error, None where there is
               none), better ("higher", "lower" or None), items: one number a document, None where value is not their mean
    exact      size (the task's own length), trained (whether training had this size), exact (fraction of answers right as
               a whole), token (fraction of answer tokens right), items: [0 or 1, ...] one an example
    places     size, side (cells a side of the object asked for), right: rows of shares of right answers, one a place of its
               upper left cell, count: answers at each
    seam       size, seam (`ropewalk.lab.panorama.seam_score`), inside: mean step between neighbouring columns, in levels
    speed      what ("train", "prefill" or "decode"), length, tokens_per_second (median), low, high (quartiles)
    memory     what ("saved for backward", "cache"), length, bytes
    learned    name, shape, before, after: flat lists of a trained number of the encoding, at most 512 of them
    fixed      name, shape, values: flat list of a number an encoding derives from its settings (frequencies, slopes)
    sweep      validation_loss: of one learning rate (the trial's lr) of ``--lr-sweep``
    refused    what, reason: a measurement the encoding refuses; the others stand
    failed     reason: the trial has no other records
"""

from __future__ import annotations

from typing import Any

from ropewalk.core.errors import RopewalkError

Record = dict[str, Any]


class MeasurementError(RopewalkError, ValueError):
    """Measurements that are not numbers, or not made on the same documents."""
