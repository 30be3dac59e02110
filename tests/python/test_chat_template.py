# Chat templates: where they are found, what they render (strings written by hand), and one clear error for each fault.
import datetime
import json

import pytest

from test_tokenizer import byte_level_fields, entry, write_gguf
from transload.chat_template import ChatTemplate, load_chat_template
from transload.error import ContractError, UsageError

USER = {"role": "user", "content": "Hi & <bye>"}
WHY = {"role": "user", "content": "Why?"}
TURNS = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Yes."}, WHY]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Blocks on lines of their own leave no trace; `-` eats what is around.
BLOCKS = """{{ bos_token }}
{%- for message in messages %}
    {% if message.role == 'user' %}
[INST] {{ message.content | trim }} [/INST]
    {%- elif message.role == 'assistant' %}
{{ message.content }}{{ eos_token }}
    {%- endif %}
{%- endfor %}"""
ALTERNATING = ("{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
               "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('Roles must alternate') }}{% endif %}"
               "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end>\n{% endfor %}"
               "{{ '<turn>model\n' }}")
# As Spark does it: a system block in any case, each block between sentence markers, thoughts by a switch.
SPARK = """{%- if not messages %}{{ raise_exception('no messages') }}{% endif -%}
{{- bos_token + '<|System|>\nyou are a helpful assistant.' }}
{%- if messages[0].role == 'system' %}{{ '\n\n' + messages[0].content }}{% endif %}
{{- eos_token }}
{%- for message in messages %}
  {%- if message.role == 'user' %}
    {{- bos_token + '<|User|>' + message.content + eos_token }}
  {%- elif message.role == 'assistant' %}
    {{- bos_token + '<|Bot|>' }}
    {%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content }}{% endif %}{{ '</think>' }}
    {{- message.content + eos_token }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- bos_token + '<|Bot|>' }}
  {%- if enable_thinking is not defined or enable_thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}
{%- endif %}"""
SPARK_HEAD = "<s><|System|>\nyou are a helpful assistant."
THOUGHT = [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}, WHY]


@pytest.mark.parametrize("source, messages, variables, expected", [
    (CHATML, [USER], {}, "<|im_start|>user\nHi & <bye><|im_end|>\n<|im_start|>assistant\n"),
    (CHATML, TURNS[:2], {"add_generation_prompt": False},
     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi & <bye><|im_end|>\n"),
    (BLOCKS, TURNS, {}, "<s>[INST] Hi & <bye> [/INST]Yes.</s>[INST] Why? [/INST]"),
    (ALTERNATING, TURNS[1:], {}, "<s><turn>user\nHi & <bye><end>\n<turn>model\nYes.<end>\n<turn>user\nWhy?<end>\n<turn>model\n"),
    (SPARK, [USER], {}, SPARK_HEAD + "</s><s><|User|>Hi & <bye></s><s><|Bot|><think>"),
    (SPARK, [USER], {"enable_thinking": True}, SPARK_HEAD + "</s><s><|User|>Hi & <bye></s><s><|Bot|><think>"),
    (SPARK, [USER], {"enable_thinking": False}, SPARK_HEAD + "</s><s><|User|>Hi & <bye></s><s><|Bot|></think>"),
    (SPARK, TURNS, {"enable_thinking": False}, SPARK_HEAD + "\n\nBe brief.</s><s><|User|>Hi & <bye></s><s><|Bot|></think>Yes.</s>"
     "<s><|User|>Why?</s><s><|Bot|></think>"),
    (SPARK, THOUGHT, {}, SPARK_HEAD + "</s><s><|User|>Hi & <bye></s><s><|Bot|><think>hm</think>Yes.</s>"
     "<s><|User|>Why?</s><s><|Bot|><think>"),
    ("{{ messages[0] | tojson }}", [{"role": "user", "content": "é<"}], {}, '{"role": "user", "content": "é<"}'),
    ("{{ messages | length | tojson(indent=2) }}", [USER], {}, "1"),
    ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", TURNS, {}, "system"),
    ("{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }} {% endfor %}", TURNS, {},
     "user assistant user "),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", [USER], {}, "Hi & <bye>!"),
    ("{{ 'tools' if tools else 'none' }}{{ unknown_variable }}", [USER], {}, "none"),
    ("{{ messages[0].content }}\n", [USER], {}, "Hi & <bye>"),
])
def test_templates_render_what_was_written_by_hand(source, messages, variables, expected):
    assert ChatTemplate(source, SPECIAL).render(messages, **variables) == expected


def test_today_is_known_to_templates():
    text = ChatTemplate("{{ strftime_now('%Y') }}").render([USER])
    assert abs(int(text) - datetime.date.today().year) <= 1


@pytest.mark.parametrize("source, messages, error, message", [
    (ALTERNATING, TURNS, UsageError, "chat template refuses the messages: got 'System role not supported'"),
    (ALTERNATING, [USER, USER], UsageError, "'Roles must alternate'"),
    (SPARK, [], UsageError, "'no messages'"),
    ("{{ messages[0].content.nothing.more }}", [USER], ContractError, "chat template fails: got UndefinedError"),
    ("{{ messages[0]['content'] + 1 }}", [USER], ContractError, "got TypeError"),
    ("{{ ''.__class__.__mro__ }}", [USER], ContractError, "got SecurityError"),
    ("{{ messages.append(1) }}", [USER], ContractError, "got SecurityError"),
    ("{% include 'other' %}", [USER], ContractError, "chat template fails: got TypeError"),
])
def test_what_a_template_cannot_do_is_one_line(source, messages, error, message):
    with pytest.raises(error) as caught:
        ChatTemplate(source, SPECIAL, "t.json").render(messages)
    assert str(caught.value).startswith("t.json: ") and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_template_that_does_not_parse_names_its_line():
    with pytest.raises(ContractError, match="^f: chat template does not parse: got .* in line 2, expected a Jinja2 template"):
        ChatTemplate("a\n{% if %}", {}, "f")


def rendered(folder):
    return load_chat_template(folder).render([USER])


def write_config(folder, **fields):
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")


def test_a_template_is_taken_from_the_file_that_counts_most(tmp_path):
    write_config(tmp_path, chat_template="config {{ bos_token }}", bos_token={"content": "<b>", "lstrip": False})
    assert rendered(tmp_path) == "config <b>"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json {{ bos_token }}"}))
    assert rendered(tmp_path) == "json <b>"
    (tmp_path / "chat_template.jinja").write_text("jinja {{ bos_token }}")
    assert rendered(tmp_path) == "jinja <b>"


def test_of_named_templates_the_default_is_taken(tmp_path):
    write_config(tmp_path, chat_template=[{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}])
    assert rendered(tmp_path) == "plain"


def test_a_gguf_carries_its_template_and_special_tokens(tmp_path):
    path = write_gguf(tmp_path / "tokenizer.gguf", byte_level_fields(eos_token_id=1))
    data = bytearray(path.read_bytes())
    data += entry("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    data[16:24] = (len(byte_level_fields()) + 1).to_bytes(8, "little")
    path.write_bytes(data)
    for place in (path, tmp_path):
        assert rendered(place) == "<|end|>Hi & <bye><extra>"


@pytest.mark.parametrize("files, error, message", [
    ({}, UsageError, "no chat template: got none in tokenizer_config.json or chat_template.jinja"),
    ({"tokenizer_config.json": "{}"}, UsageError, "no chat template"),
    ({"tokenizer_config.json": "[]"}, ContractError, "got list, expected an object"),
    ({"tokenizer_config.json": "{"}, ContractError, "malformed JSON"),
    ({"tokenizer_config.json": b"\xff"}, ContractError, "malformed text"),
    ({"chat_template.jinja": b"\xff"}, ContractError, "malformed text"),
    ({"tokenizer_config.json": '{"chat_template": 5}'}, ContractError, "field 'chat_template': got int"),
    ({"tokenizer_config.json": '{"chat_template": [{"name": "rag", "template": "x"}]}'}, ContractError,
     "got templates rag, expected a text or a list with one called default"),
    ({"tokenizer_config.json": '{"chat_template": "x", "bos_token": 3}'}, ContractError, "field 'bos_token': got int"),
])
def test_a_folder_without_a_usable_template_is_refused(tmp_path, files, error, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error) as caught:
        load_chat_template(tmp_path)
    assert message in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_gguf_without_a_template_is_refused(tmp_path):
    with pytest.raises(UsageError, match="got no 'tokenizer.chat_template', expected one"):
        load_chat_template(write_gguf(tmp_path / "t.gguf", byte_level_fields()))
