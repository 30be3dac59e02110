# A Hugging Face checkpoint in memory, to be changed and written: config.json and the tensors of all its files.
import json
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1}


def read_safetensors(path):
    """Name -> (dtype, shape, bytes), in the order of the header."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    data = memoryview(content)[8 + length:]
    return {name: (row["dtype"], row["shape"], bytes(data[slice(*row["data_offsets"])]))
            for name, row in json.loads(content[8:8 + length]).items() if name != "__metadata__"}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


class HfCheckpoint:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.tensors.update(read_safetensors(path))

    def write(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.tensors)
        return folder

    def set_value(self, name, index, bits):
        """The bits of one element of a two-byte tensor."""
        dtype, shape, data = self.tensors[name]
        self.tensors[name] = (dtype, shape, data[:2 * index] + struct.pack("<H", bits) + data[2 * index + 2:])

    def zeros(self, name, dtype, shape):
        count = 1
        for size in shape:
            count *= size
        self.tensors[name] = (dtype, shape, bytes(count * SIZES[dtype]))
