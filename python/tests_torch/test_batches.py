"""The types in trainers' batches, on every rank."""

from __future__ import annotations

import pathlib
from typing import Any

import levada
import numpy as np
import ranks


def test_batches_of_transformers_come_back_unchanged(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from transformers import BatchEncoding
        from transformers.modeling_outputs import CausalLMOutput
        levada.register(CausalLMOutput)
        def loader():
            for i in range(4):
                ids = torch.arange(6).reshape(2, 3) + i
                yield BatchEncoding({"input_ids": ids, "attention_mask": torch.ones(2, 3)}, n_sequences=1)
            yield CausalLMOutput(logits=torch.ones(2))
            yield {"x": torch.zeros(2)}
        class Loader:
            def __iter__(self): return loader()
        for iterate in ("thread", "inline"):
            *batches, last = levada.Feed(Loader(), iterate=iterate)
            for batch in batches:
                tell(type=type(batch).__name__, ids=batch.input_ids.tolist(), keys=list(batch), n=batch.n_sequences,
                     moved=type(batch.to("meta")).__name__)
            tell(type=type(last).__name__, logits=last.logits.tolist() if rank == 0 else None, loss="loss" in last)
        """,
    )
    for rank, mine in enumerate(told):
        expected = [
            {
                "type": "BatchEncoding",
                "ids": [[i, i + 1, i + 2], [i + 3, i + 4, i + 5]],
                "keys": ["input_ids", "attention_mask"],
                "n": 1,
                "moved": "BatchEncoding",
            }
            for i in (rank, 2 + rank)
        ]
        last = {"type": "dict", "logits": None, "loss": False}
        if rank == 0:
            last = {"type": "CausalLMOutput", "logits": [1.0, 1.0], "loss": False}
        assert mine == [*expected, last] * 2


def test_features_of_processors_come_back_unchanged(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from transformers import BatchFeature
        class Loader:
            def __iter__(self):
                for i in range(4):
                    pixels, sizes = torch.full((2, 3, 4, 4), float(i)), torch.tensor([[4, 4], [4, i]])
                    yield BatchFeature({"pixel_values": pixels, "image_sizes": sizes, "names": [f"image {i}", "blank"]})
                yield BatchFeature({"input_features": np.full((2, 8), 4, np.float32), "nested": [torch.arange(3)]})
                yield BatchFeature({"input_features": np.full((2, 8), 5, np.float32), "nested": [torch.arange(5)]})
        for iterate in ("thread", "inline"):
            *batches, last = levada.Feed(Loader(), iterate=iterate)
            for batch in batches:
                tell(type=type(batch).__name__, keys=list(batch), pixels=batch.pixel_values.flatten().tolist()[::48],
                     shape=list(batch["pixel_values"].shape), sizes=batch["image_sizes"].tolist(), names=batch.names,
                     moved=[type(batch.to("meta")).__name__, batch.to("meta").pixel_values.device.type])
            tell(type=type(last).__name__, array=type(last["input_features"]).__name__, value=float(last.input_features[1, 7]),
                 nested=last["nested"][0].tolist())
        """,
    )
    for rank, mine in enumerate(told):
        expected = [
            {
                "type": "BatchFeature",
                "keys": ["pixel_values", "image_sizes", "names"],
                "pixels": [float(i)] * 2,
                "shape": [2, 3, 4, 4],
                "sizes": [[4, 4], [4, i]],
                "names": [f"image {i}", "blank"],
                "moved": ["BatchFeature", "meta"],
            }
            for i in (rank, 2 + rank)
        ]
        nested = list(range(5 if rank else 3))
        last = {"type": "BatchFeature", "array": "ndarray", "value": 4.0 + rank, "nested": nested}
        assert mine == [*expected, last] * 2


def test_the_output_of_a_fast_tokenizer_crosses_without_its_encodings(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[PAD]": 2}, unk_token="[PAD]"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
        texts = ["a b", "b", "a", "b b b"]
        loader = torch.utils.data.DataLoader(
            texts, batch_size=2, collate_fn=lambda texts: tokenizer(texts, return_tensors="pt", padding=True))
        for allow_pickle in (False, True):
            (batch,) = levada.Feed(loader, allow_pickle=allow_pickle)
            tell(ids=batch.input_ids.tolist(), type=type(batch).__name__, fast=batch.is_fast)
        """,
    )
    for rank, mine in enumerate(told):
        ids = [[[0, 1], [1, 2]], [[0, 2, 2], [1, 1, 1]]][rank]
        assert mine == [{"ids": ids, "type": "BatchEncoding", "fast": fast} for fast in (False, True)]


def test_small_floats_strides_and_aliases_cross_bit_for_bit(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        names = "bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex32".split()
        def batch(step):
            whole = torch.arange(24).reshape(4, 6) + step
            made = {name: (whole % 7).to(getattr(torch, name)) for name in names}
            made["pairs"] = whole.to(torch.uint8).view(torch.float4_e2m1fn_x2)
            made |= {"columns": whole[:, ::2], "turned": whole.t(), "row": whole[1], "scalar": whole[2, 3], "none": whole[:0]}
            made |= {"expanded": torch.tensor([step]).expand(3, 5), "again": whole, "whole": whole}
            return made
        def same(a, b):
            bits = lambda t: t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)
            return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
        for step, got in enumerate(levada.Feed((batch(i) for i in range(6)), mesh=levada.Mesh(tp=2))):
            expected = batch(step)
            wrong = [name for name in expected if not same(got[name], expected[name])]
            tell(wrong=wrong, keys=list(got) == list(expected), aliased=got["whole"] is got["again"])
            got["whole"] += rank + 1  # a rank's own
        """,
    )
    for mine in told:
        assert mine == [{"wrong": [], "keys": True, "aliased": True}] * 6


def test_a_tensordict_crosses_and_is_divided_like_its_tensors(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from tensordict import TensorDict
        def make():
            nested = TensorDict({"c": torch.ones(4, 2, 1)}, batch_size=[4, 2])
            return TensorDict({"a": torch.arange(8).view(4, 2), "n": nested, "name": "x"}, batch_size=[4], names=["rows"])
        def loader():
            for _ in range(4):
                yield make()
        for divide in ("deal", "split"):
            for device in (None, "meta"):
                for batch in levada.Feed(loader(), divide=divide, device=device):
                    tell(kind=type(batch).__name__, size=list(batch.batch_size), names=batch.names, name=batch["name"],
                         nested=list(batch["n"].batch_size), device=batch["a"].device.type,
                         a=batch["a"].tolist() if device is None else None)
        back = levada.unpack(levada.pack([make().to("cpu")]))[0]
        tell(back=str(back.device), same=bool((back == make()).all()))
        """,
    )
    for rank, mine in enumerate(told):
        whole = {"kind": "TensorDict", "size": [4], "names": ["rows"], "name": "x", "nested": [4, 2], "device": "cpu"}
        rows = [[0, 1], [2, 3], [4, 5], [6, 7]]
        half = {**whole, "size": [2], "nested": [2, 2]}
        dealt, split = {**whole, "a": rows}, {**half, "a": rows[2 * rank : 2 * rank + 2]}
        moved = [{**each, "device": "meta", "a": None} for each in (whole, half)]
        assert mine == [*[dealt] * 2, *[moved[0]] * 2, *[split] * 4, *[moved[1]] * 4, {"back": "cpu", "same": True}]


def test_images_keep_their_transparency() -> None:
    from PIL import Image

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    kinds: list[tuple[Any, Any]] = [(palette, 1), (palette, bytes([7, 200])), (palette.convert("RGB"), (10, 20, 30))]
    kinds += [(Image.new("L", (2, 1), 5), 5), (Image.new("L", (2, 1), 5), None)]
    for image, transparency in kinds:
        image = image.copy()
        image.info = {"dpi": (72, 72)} if transparency is None else {"dpi": (72, 72), "transparency": transparency}
        after = levada.unpack(levada.pack({"image": image}))["image"]
        assert after.info == ({} if transparency is None else {"transparency": transparency})
        assert after.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_images_cross_with_their_pixels_and_palettes(tmp_path: pathlib.Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(1)
    rgb = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    rgb.save(tmp_path / "image.png")
    images = [rgb, rgb.convert("L"), rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=9), rgb.convert("1"),
              rgb.convert("RGBA"), rgb.convert("F"), Image.open(tmp_path / "image.png")]
    received = levada.unpack(levada.pack({"images": images}))["images"]
    for before, after in zip(images, received, strict=True):
        assert type(after) is Image.Image and (after.mode, after.size) == (before.mode, before.size)
        assert after.tobytes() == before.tobytes() and after.getpalette() == before.getpalette()
        assert after.convert("RGB").tobytes() == before.convert("RGB").tobytes()
