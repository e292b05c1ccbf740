"""Text files that go along with a message, and what there is no room for."""

from __future__ import annotations

import pytest

from tests.page.user import DONE, User

pytestmark = pytest.mark.browser
HOSTILE_NAME = '<img src=x onerror="window.hacked=1">`\n\u202egnp.exe'


def attach(user: User, *files: tuple[str, bytes]) -> None:
    user.page.set_input_files("#file", [{"name": name, "mimeType": "", "buffer": text} for name, text in files])


def give(user: User, kind: str, files: dict[str, str]) -> None:
    """Drop or paste files on the page, as the browser would tell of them."""
    user.page.evaluate(
        """([kind, files]) => {
            const data = new DataTransfer();
            for (const [name, text] of Object.entries(files)) data.items.add(new File([text], name));
            const options = { bubbles: true, cancelable: true };
            const on = document.getElementById("prompt");
            const dragged = { ...options, dataTransfer: data };
            if (kind === "paste") on.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: data }));
            else for (const type of ["dragover", "drop"]) on.dispatchEvent(new DragEvent(type, dragged));
        }""", [kind, files],
    )


def notices(user: User) -> list[str]:
    return user.texts("#notices span")


def test_a_file_goes_before_the_message_and_is_folded(user: User) -> None:
    attach(user, ("notes.md", b"first\n```\ncode\n```\n"))
    user.page.wait_for_selector(".chip >> text=notes.md")
    user.say("What is this?")
    sent = "File notes.md:\n````\nfirst\n```\ncode\n```\n````\n\nWhat is this?"
    assert user.chat.asked[-1]["messages"] == [{"role": "user", "content": sent}]
    assert user.texts(".message.user .body") == ["What is this?"]
    assert user.texts(".message.user summary") == ["notes.md19 B"]
    assert user.page.locator(".message.user pre").is_hidden()
    assert user.page.locator(".chip").count() == 0
    user.page.reload()
    user.page.click(".message.user summary")
    user.page.wait_for_selector(".message.user pre >> text=code")
    user.page.hover(".message.user")
    user.page.click(".message.user >> [aria-label=Edit]")
    user.page.click("[aria-label='Take off notes.md']")
    user.page.press("textarea.edit", "Enter")
    user.page.wait_for_selector("text=You said What is this?, reply 2.")
    user.page.wait_for_selector(DONE)
    assert user.chat.asked[-1]["messages"] == [{"role": "user", "content": "What is this?"}]


def test_files_are_dropped_and_pasted(user: User) -> None:
    give(user, "drop", {"a.txt": "A"})
    user.page.wait_for_selector(".chip >> text=a.txt")
    give(user, "paste", {"b.txt": "B"})
    user.page.wait_for_selector(".chip >> text=b.txt")
    assert user.texts(".chip bdi") == ["a.txt", "b.txt"]
    assert "dropping" not in user.page.evaluate("document.body.className")
    user.page.click("[aria-label='Take off a.txt']")
    user.page.press("#prompt", "Enter")  # a file alone is a message, too
    user.page.wait_for_selector(DONE)
    assert user.chat.asked[-1]["messages"][0]["content"] == "File b.txt:\n```\nB\n```"
    assert user.texts("#chats .title") == ["b.txt"]


def test_what_is_no_text_or_too_much_is_refused(user: User) -> None:
    attach(user, ("photo.png", b"\x89PNG\r\n\x1a\n"), ("zeros", b"a\0b"), ("empty", b""), ("big.txt", b"x" * 250_001),
           ("latin.txt", "Maß".encode("latin-1")))
    user.page.wait_for_selector("#notices >> text=latin.txt")
    text = "is not a text in UTF-8 or UTF-16."
    assert notices(user) == [f"photo.png {text}", f"zeros {text}", "empty is empty.",
                             "big.txt has 250 KB, and at most 250 KB can be attached.", f"latin.txt {text}"]
    assert user.page.locator(".chip").count() == 0
    for _ in range(5):
        user.page.click("#notices [aria-label=Close] >> nth=0")
    assert notices(user) == []
    attach(user, *((f"{i}.txt", b"x" * 240_000) for i in range(3)))
    user.page.wait_for_selector("#notices div")
    assert notices(user) == ["2.txt is too much: files of a message may have 500 KB together."]
    user.page.click("#notices [aria-label=Close]")
    attach(user, *((f"{i}.txt", b"y") for i in range(3, 12)))
    user.page.wait_for_selector("#notices div")
    assert notices(user) == ["11.txt is one too many: at most 10 files go with a message."]
    assert user.page.locator(".chip").count() == 10


def test_texts_of_other_systems(user: User) -> None:
    attach(user, *((f"{coding}.txt", "Maß €\r\n".encode(coding)) for coding in ("utf-8-sig", "utf-16")))
    user.page.wait_for_selector(".chip >> nth=1")
    user.say("x")
    sent = user.chat.asked[-1]["messages"][0]["content"].split("\n\n")
    assert sent[:2] == [f"File {coding}.txt:\n```\nMaß €\r\n```" for coding in ("utf-8-sig", "utf-16")]


def test_a_name_can_do_nothing(user: User) -> None:
    give(user, "drop", {HOSTILE_NAME: "<script>window.hacked=1</script>"})
    user.page.wait_for_selector(".chip")
    user.say("x")
    user.page.click(".message.user summary")
    user.page.wait_for_selector(".message.user pre >> text=hacked")
    assert user.page.evaluate("window.hacked") is None
    assert user.page.locator("#log :is(img, script)").count() == 0
    name = '<img src=x onerror="window.hacked=1"> gnp.exe'
    assert user.texts(".message.user summary bdi") == [name]
    assert user.chat.asked[-1]["messages"][0]["content"].startswith(f"File {name}:\n```\n<script>")


def test_what_was_not_sent_is_there_after_a_reload(user: User) -> None:
    attach(user, ("notes.md", b"text"))
    user.page.wait_for_selector(".chip")
    user.page.fill("#prompt", "half a sent")
    user.page.reload()
    assert user.page.input_value("#prompt") == "half a sent"
    assert user.texts(".chip bdi") == ["notes.md"]
    user.page.press("#prompt", "Enter")
    user.page.wait_for_selector(DONE)
    user.page.reload()
    assert user.page.input_value("#prompt") == ""
    assert user.page.locator(".chip").count() == 0


def fill_storage(user: User) -> None:
    """Leave no room for another conversation."""
    user.page.evaluate("""() => {
        for (let size = 1 << 22; size >= 64; size >>= 1) for (let i = 0; ; i++) {
            try { localStorage.setItem(`other.${size}.${i}`, "x".repeat(size)); } catch { break; }
        }
    }""")


def test_no_room_loses_nothing(user: User) -> None:
    user.say("kept")
    before = user.stored()
    fill_storage(user)
    user.page.click("#new")
    user.say("new and without room " * 20)
    user.say("more")
    assert len(notices(user)) == 1
    assert notices(user)[0].startswith("This browser has no room left: what is new is kept only until")
    assert user.stored() == before
    titles = user.texts("#chats .title")
    assert titles[0].startswith("new and without room")
    user.page.click("#chats .title >> text=kept")
    user.page.click("#chats .title >> nth=0")
    assert len(user.texts(".message")) == 4
    user.page.click("[aria-label='Remove kept']")
    user.page.evaluate("Object.keys(localStorage).forEach((n) => n.startsWith('other') && localStorage.removeItem(n))")
    user.page.click("[aria-label='Remove kept']")
    assert notices(user) == []
    assert [len(one["messages"]) for one in user.stored()] == [4]
    user.page.reload()
    assert len(user.texts(".message")) == 4


def test_a_browser_that_keeps_nothing(user: User) -> None:
    for name in ("localStorage", "sessionStorage"):
        denied = "{ get() { throw new Error('denied'); } }"
        user.page.add_init_script(f"Object.defineProperty(window, '{name}', {denied})")
    user.page.reload()
    user.say("hello")
    assert user.texts(".message > .text") == ["You said hello, reply 1."]
    assert user.texts("#chats .title") == ["hello"]
