"""Run under the sanitizers of the compiler, which end it at the first access out of bounds:
`sanitised_sieve.py FOLDER`, the folder that has `_sieve` compiled for them.
"""

import random
import sys

PIECES = (
    b"node-7:40:41 [0] NCCL INFO Channel 07/0 : 0[0] -> 1[0] via NET/IB/0", b"NCCL INFO ", b"NCCL",
    b"node-7:40:41", b" [0] ", b"]", b":", b" ", b"4", b"Channel ", b"00", b"Trees [0",
    b"\n", b"\n", b"\0", b"\r", b"\xff", b"Unrelated",
)  # fmt: skip


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from _sieve import Sieve  # type: ignore[import-not-found]

    rng = random.Random(7)
    for _ in range(10):
        sieve = Sieve((b"NCCL", b"Unrelated", b"\xff\xff\xff"), (b"Trees [0",))
        for _ in range(800):
            text = b"".join(rng.choices(PIECES, k=rng.randrange(60)))
            count, rows = sieve.sift(text, 0, len(text), rng.random() < 0.5)
            assert count == text.count(b"\n")
            hashes = [row[2] for row in rows if row[2]]
            for each in hashes[:3]:
                assert sieve.alike(each, -1)
            sieve.learn(hashes)
            sieve.forget(hashes[::2])
    sieve.sift(b"\n" * 100_000, 0, 100_000, False)
    many = b"".join(b"n:%d:1 [0] NCCL INFO Channel 00 : 0\n" % n for n in range(50_000))
    _, rows = sieve.sift(many, 0, len(many), False)
    sieve.learn(row[2] for row in rows)
    assert len(rows) == 50_000
    assert len(sieve.sift(many, 0, len(many), False)[1]) < 100

    class Late(bytes):
        def __del__(self) -> None:
            assert sieve.sift(b"\n", 0, 1, False) == (1, [])

    sieve.sift(Late(many), 0, len(many), False)
    fresh = many.replace(b"n:", b"m:")
    assert len(sieve.sift(fresh, 0, len(fresh), False)[1]) == 50_000


if __name__ == "__main__":
    main()
