# A tokenizer in which token 17 is spelled "<17>", so that text and tokens turn into each other without loss.
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers


def spelled(tokens):
    return "".join(f"<{token}>" for token in tokens)


def build(vocab, marks=None):
    """Tokens 0 to 2 are special: begin, end, unknown. `marks`: other spellings by id."""
    names = {token: (marks or {}).get(token, f"<{token}>") for token in range(vocab)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel({name: token for token, name in names.items()}, unk_token="<2>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("<[^>]*>"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(names[token], special=True, normalized=False) for token in range(3)])
    return tokenizer
