# Conversations: what is sent for each message, how answers enter the history, thoughts apart from answers.
import pytest

import tiny_tokenizer
from transload.chat import ChatStream, Conversation
from transload.chat_template import ChatTemplate
from transload.error import UsageError
from transload.tokenizer import Tokenizer

# <10> user <11>, <12> assistant <13>, and <12> to answer.
PLAIN = ("{% for m in messages %}{{ '<10>' if m.role == 'user' else '<9>' if m.role == 'system' else '<12>' }}{{ m.content }}"
         "{{ '<13>' if m.role == 'assistant' else '<11>' }}{% endfor %}<12>")
THINKING = ("{% for m in messages %}{% if m.role == 'user' %}<10>{{ m.content }}<11>{% else %}<12>"
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<13>{% endif %}"
            "{% endfor %}"
            "<12>{% if enable_thinking is not defined or enable_thinking %}<think>{% else %}</think>{% endif %}")
MARKS = {3: "<think>", 4: "</think>"}


def conversation(template=PLAIN, **options):
    return Conversation(ChatTemplate(template), Tokenizer(tiny_tokenizer.build(64, MARKS)), **options)


def test_only_new_tokens_are_sent_when_the_prompt_continues_what_was_read():
    talk = conversation()
    assert talk.ask("<20>") == ([10, 20, 11, 12], True)
    talk.answered([30, 31], stopped=True)  # the stop token 13 was chosen, not read
    assert talk.ask("<21>") == ([13, 10, 21, 11, 12], False)
    talk.answered([32, 33], stopped=False)  # cut short: 33 was chosen, not read
    assert talk.ask("<22>") == ([33, 13, 10, 22, 11, 12], False)


def test_everything_is_read_anew_when_an_answer_is_spelled_differently_as_text():
    talk = conversation("{% for m in messages %}{{ m.content | replace('<30>', '<31>') }}{% endfor %}<12>")
    assert talk.ask("<20>") == ([20, 12], True)
    talk.answered([30], stopped=True)
    assert talk.ask("<21>") == ([20, 31, 21, 12], True)


def test_a_system_message_comes_first_and_survives_forgetting():
    talk = conversation(system="<40>")
    first = talk.ask("<20>")
    assert first == ([9, 40, 11, 10, 20, 11, 12], True)
    talk.answered([30], stopped=True)
    talk.forget()
    assert talk.ask("<20>") == first


@pytest.mark.parametrize("thinking, end", [(None, 3), (True, 3), (False, 4)])
def test_thinking_is_the_variable_that_templates_read(thinking, end):
    assert conversation(THINKING, thinking=thinking).ask("<20>") == ([10, 20, 11, 12, end], True)


@pytest.mark.parametrize("answer, history", [
    ([50, 51, 4, 52], [12, 3, 50, 51, 4, 52, 13]),
    ([3, 50, 4, 52], [12, 3, 50, 4, 52, 13]),  # some models write the opening mark themselves
    ([50, 51], [12, 3, 50, 51, 4, 13]),  # cut while thinking: all of it is thought
])
def test_thoughts_and_answer_are_told_apart_in_the_history(answer, history):
    talk = conversation(THINKING)
    talk.ask("<20>")
    talk.answered(answer, stopped=True)
    sent, anew = talk.ask("<21>")
    whole = [10, 20, 11] + history + [10, 21, 11, 12, 3]
    read = [10, 20, 11, 12, 3] + answer
    assert sent == (whole if anew else whole[len(read):]) and anew == (whole[:len(read)] != read)


def test_without_thinking_an_answer_is_all_content():
    talk = conversation(THINKING, thinking=False)
    talk.ask("<20>")
    talk.answered([50], stopped=True)
    assert talk.ask("<21>") == ([10, 20, 11, 12, 50, 13, 10, 21, 11, 12, 4], True)


def test_marks_that_the_tokenizer_hides_are_shown():
    inner = tiny_tokenizer.build(64, MARKS)
    shown = ChatStream(Tokenizer(inner))
    assert [shown.push(token) for token in (20, 4, 21)] == ["<20>", "</think>", "<21>"]
    inner.add_special_tokens(["<think>", "</think>"])
    shown = ChatStream(Tokenizer(inner))
    assert "".join([shown.push(token) for token in (20, 4, 21)] + [shown.finish()]) == "<20></think>\n<21>"


def test_an_empty_prompt_is_refused():
    with pytest.raises(UsageError, match="chat template gives an empty prompt"):
        conversation("").ask("x")
