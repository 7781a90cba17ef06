"""All texts of a small grammar, by going through every sequence of choices."""

from math import prod

from konigsberg.grammar import Path, Slot, Tale, Writer


class Scripted(Writer):
    """Takes given choices first, then the first of all; notes the share of every choice and how many there were."""

    def __init__(self, script):
        super().__init__(None)
        self.script, self.shares, self.counts, self.taken = script, [], [], []

    def choose(self, roots, branches):
        first, drawn = len(self.taken), {}
        stack = list(reversed(self.pick(roots).parts))
        while stack:
            part = stack.pop()
            if isinstance(part, Slot):
                way = self.pick(branches(part, drawn))
                drawn |= {part.name: way.draws} if way.draws else {}
                stack += reversed(way.parts)
            else:
                self.text += part if isinstance(part, bytes) else part.text
        return Path(len(self.text), tuple(self.taken[first:]), drawn)

    def pick(self, ways):
        at = len(self.taken)
        self.taken.append(self.script[at] if at < len(self.script) else 0)
        self.counts.append(len(ways))
        self.shares.append(ways[self.taken[at]].share)
        return ways[self.taken[at]]


def every(play, phrases, make=Tale):
    """Each text that `play(tale)` can tell: its probability, the text in bytes, and the tale."""
    script = []
    while True:
        source = Scripted(script)
        tale = make(source, phrases)
        play(tale)
        yield prod(source.shares), bytes(source.text), tale
        last = len(source.taken)
        while last and source.taken[last - 1] + 1 == source.counts[last - 1]:
            last -= 1
        if not last:
            return
        script = [*source.taken[: last - 1], source.taken[last - 1] + 1]
