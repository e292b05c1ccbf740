"""QTensor: what it says about itself, and the shapes and bytes that it refuses."""

import pickle

import numpy as np
import pytest

from octavo.errors import QuantFormatError
from octavo.formats import FORMATS, DeferredQTensor, QTensor, by_name, dequantize, quantize_reference

Q4_0 = by_name("Q4_0")


def test_a_tensor_knows_its_sizes():
    t = QTensor(Q4_0, (2, 3, 64), np.zeros((2, 3, 36), np.uint8), "blk.0.ffn_up_exps.weight")
    assert t.nbytes == 216
    assert t.size == 384
    assert repr(t) == "QTensor(Q4_0, [2, 3, 64], blk.0.ffn_up_exps.weight)"


def test_read_only_views_are_taken_as_they_are():
    data = np.zeros((2, 18), np.uint8)
    data.flags.writeable = False
    assert QTensor(Q4_0, (2, 32), data).data is data


@pytest.mark.parametrize(
    ("shape", "data", "problem"),
    [
        ((), np.zeros((), np.uint8), "at least one dimension"),
        ((2, 33), np.zeros((2, 18), np.uint8), "row of 33 values.*multiples of 32"),
        ((2, 32), np.zeros((2, 17), np.uint8), r"needs uint8 \(2, 18\)"),
        ((2, 32), np.zeros((2, 18), np.int8), "int8"),
        ((2, 32), np.zeros(36, np.uint8), r"\(36,\)"),
    ],
)
def test_shapes_and_bytes_that_do_not_fit(shape, data, problem):
    with pytest.raises(QuantFormatError, match=f"tensor 'w'.*{problem}"):
        QTensor(Q4_0, shape, data, "w")


def test_a_tensor_goes_to_another_process():
    t = pickle.loads(pickle.dumps(QTensor(Q4_0, (1, 32), np.arange(18, dtype=np.uint8)[None], "w")))
    assert t.format == Q4_0
    assert np.array_equal(dequantize(t), dequantize(QTensor(Q4_0, (1, 32), np.arange(18, dtype=np.uint8)[None])))
    assert [f.name for f in pickle.loads(pickle.dumps(FORMATS))] == [f.name for f in FORMATS]


def test_a_deferred_tensor_reads_when_it_is_asked():
    reads = []
    whole = quantize_reference(np.ones((2, 64), np.float32), by_name("Q8_0"))

    def load():
        reads.append(1)
        return whole

    tensor = DeferredQTensor(whole.format, whole.shape, load, "w")
    assert (tensor.nbytes, tensor.size, repr(tensor)) == (whole.nbytes, 128, "QTensor(Q8_0, [2, 64], w)")
    assert not reads
    assert np.array_equal(dequantize(tensor), dequantize(whole))
    assert len(reads) == 1
    assert np.array_equal(pickle.loads(pickle.dumps(tensor)).data, whole.data)
    stored, before = tensor.stored(), len(reads)
    for t in (whole.stored(), stored):
        assert np.array_equal(t.blocks(slice(1, 3)), whole.data.reshape(4, 34)[1:3])
        assert np.array_equal(t.rows(slice(1, 2)), whole.data[1:])
    assert len(reads) == before
    with pytest.raises(QuantFormatError, match="'w'"):
        assert DeferredQTensor(whole.format, (2, 32), load, "w").data.size
