"""Königsberg, the town: its people and their voices, its things and places, its seven bridges and their true graph."""

from collections.abc import Sequence

from nanoeuler_lib.world.grammar import Word


def person(name: str, he: str, who: tuple[str, ...], did: tuple[str, ...], says: tuple[str, ...]) -> Word:
    """A person with a voice: `who` follows the name, `did` is a reaction in the past, `says` a remark to quote."""
    his, him = {"he": ("his", "him"), "she": ("her", "her")}[he]
    return Word({"": name, "he": he, "his": his, "him": him, "who": who, "did": did, "says": says})


KAETHE = person(
    "Käthe",
    "she",
    ("who counts twice", "who trusts no sum"),
    ("counted again", "counted her fingers", "wrote it down", "sharpened a pencil"),
    ("I counted twice,", "Write that down,", "I knew it,", "That makes one,"),
)
JUERGEN = person(
    "Jürgen",
    "he",
    ("who is always hungry", "who thinks in buns"),
    ("ate a bun", "asked for soup", "chewed", "thought of dinner"),
    ("Is there soup?", "I only bake here,", "It was a small bun,", "Is it edible?"),
)
JOHANNA = person(
    "Johanna",
    "she",
    ("who sells eels", "who whistles at gulls"),
    ("whistled at a gull", "sold an eel", "laughed like a gull", "stroked an eel"),
    ("Ask the eels,", "Worse things swim,", "Fresh eels!", "Eels never lie,"),
)
GOLDBACH = person(
    "Frau Goldbach",
    "she",
    ("who conjectures", "who suspects all"),
    ("proved nothing", "made a conjecture", "wrote to Moscow", "saw a pattern"),
    ("I conjecture so,", "I cannot prove it,", "So far it holds,", "It must be even,"),
)
BERNOULLI = person(
    "Herr Bernoulli",
    "he",
    ("who avoids his brother", "who bets on rain"),
    ("blamed his brother", "offered a bet", "rolled dice", "doubled the stakes"),
    ("Ask my brother,", "Shall we bet?", "I had even odds,", "My brother did it,"),
)
LEONHARD = person(
    "Leonhard",
    "he",
    ("who is seven", "who asks why"),
    ("asked why", "drew a graph", "counted bridges", "found a proof"),
    ("Why?", "That can be proved,", "Seven is odd,", "It is only a graph,"),
)
IMMANUEL = person(
    "Immanuel",
    "he",
    ("who is never late", "who owns two clocks"),
    ("took his walk", "looked at the clock", "went home on time", "thought about duty"),
    ("One ought to,", "What if all did that?", "It is past three,", "Is that a maxim?"),
)
HINRICH = person(
    "Hinrich",
    "he",
    ("who rows the ferry", "who dislikes bridges"),
    ("spat in the river", "cursed all bridges", "asked for a tip", "rowed home"),
    ("Boats float,", "Blame the bridges,", "That costs extra,", "Bridges!"),
)
KUEHN = person(
    "Doktor Kühn",
    "he",
    ("who weighs his soup", "who sells powders"),
    ("weighed his words", "took ten drops", "sold a powder", "felt a pulse"),
    ("Ten drops,", "I have a powder,", "Does it hurt?", "Twice a day,"),
)
ULRIKE = person(
    "Ulrike",
    "she",
    ("who hears through walls", "who tells nobody"),
    ("told the whole street", "opened a window", "swore silence", "leaned closer"),
    ("I say nothing,", "The walls told me,", "You never asked me,", "Guess what I heard,"),
)
MOELLER = person(
    "Kantor Möller",
    "he",
    ("who plays the organ", "who hums fugues"),
    ("hummed a fugue", "played a chord", "sang in G minor", "lost the beat"),
    ("From the top,", "That was flat,", "In G minor,", "One hears it,"),
)
GRETE = person(
    "Grete",
    "she",
    ("who keeps nine geese", "who argues with geese"),
    ("counted the geese", "asked a goose", "let the geese decide", "honked"),
    ("Ask the goose,", "The geese saw it,", "A goose would know,", "Hush, goose,"),
)
MURR = person(
    "Murr",
    "he",
    ("who is a cat", "who smells marzipan"),
    ("washed", "purred", "looked at the ceiling", "fell asleep"),
    ("Miau,", "Prrr,"),
)
PEOPLE = (
    KAETHE, JUERGEN, JOHANNA, GOLDBACH, BERNOULLI, LEONHARD, IMMANUEL, HINRICH, KUEHN, ULRIKE, MOELLER, GRETE,
)  # fmt: skip
CAST = (*PEOPLE, MURR)


def thing(name: str, *lines: str) -> Word:
    """A thing that is carried, lost and hidden; `line` is a sentence about it that does not name it."""
    return Word({"": f"the {name}", "line": lines})


SMALL = (
    thing("amber", "There was a fly in it.", "It was warm."),
    thing("key", "It fitted no door.", "It opened everything."),
    thing("marzipan", "It had been licked.", "It was pig-shaped."),
    thing("compass", "It pointed to soup.", "It doubted the north."),
    thing("map", "It was upside down.", "It left out Lomse."),
    thing("ring", "It turned fingers green.", "It was too small."),
    thing("bell", "It knew one note.", "It rang by itself."),
    thing("spoon", "It was said to be silver.", "It bent by itself."),
    thing("whistle", "Only dogs heard it.", "It was full of crumbs."),
    thing("wig", "It looked like a cat.", "Something lived in it."),
)
LARGE = (
    thing("hen", "It laid an egg.", "It disliked bridges."),
    thing("lantern", "It burned even at noon.", "It mostly smoked."),
    thing("globe", "Prussia was missing.", "It squeaked."),
    thing("cheese", "Dogs followed it.", "It had begun to lean."),
    thing("clock", "It struck thirteen.", "It ran backwards."),
    thing("lute", "It had one string.", "A mouse lived in it."),
)
THINGS = SMALL + LARGE

PLACES = tuple(
    Word({"": f"the {name}"})
    for name in (
        "drawer", "teapot", "flour", "oven", "boot", "soup", "piano", "cradle", "hat", "bucket", "stove", "barrel",
        "chest", "bath", "attic", "butter",
    )
)  # fmt: skip
SPOTS = tuple(
    Word({"": f"the {name}"})
    for name in (
        "well", "mill", "ferry", "church", "school", "tower", "brewery", "castle", "harbour", "bakery", "park", "pond",
    )
)  # fmt: skip

NUMBERS = tuple(
    Word({"": name, "coins": name if name == "nothing" else f"{name} Groschen"}, once=False)
    for name in (
        "nothing one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty"
    ).split()
)  # fmt: skip
DAYS = tuple(Word({"": day}) for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"))
LATENESS = tuple(Word({"": text}) for text in ("one day", "two days", "three days", "four days", "five days"))
WARES = tuple(
    Word({"": name}) for name in ("herrings", "eels", "pears", "buns", "candles", "figs", "onions", "nails")
)
EXTRAS = tuple(
    Word({"": f"a {name}", "that": f"the {name}"})
    for name in ("duck", "broom", "jug", "whistle", "lute", "hat", "drum", "kite", "goose", "pie")
)
ALIBIS = tuple(
    Word({"": f"in the {name}"})
    for name in (
        "bath", "boat", "pond", "well", "tower", "brewery", "school", "castle", "mill", "bakery", "harbour", "barrel",
        "chest",
    )
)  # fmt: skip
CRIMES = tuple(
    Word({"": done, "did": did})
    for done, did in (
        ("rung the bell at three", "rang the bell at three"),
        ("licked the marzipan", "licked the marzipan"),
        ("put an eel in the organ", "put an eel in the organ"),
        ("painted a horse blue", "painted a horse blue"),
        ("let out the geese", "let out the geese"),
        ("drawn a beard on the mayor", "drew a beard on the mayor"),
        ("turned back the clocks", "turned back the clocks"),
        ("tied the ferry to a cow", "tied the ferry to a cow"),
        ("eaten the mayor's pie", "ate the mayor's pie"),
        ("taught the parrot to swear", "taught the parrot to swear"),
    )
)
CAUSES = tuple(
    Word({"": the, "sat": sat, "gone": gone})
    for the, sat, gone in (
        ("the goose", "a goose nested", "the goose flew off"),
        ("the cow", "a cow lay", "the cow got up"),
        ("the wedding", "a wedding danced", "the bride sat down"),
        ("the bear", "a bear danced", "the bear got tired"),
        ("the turnips", "turnips lay", "a horse ate the turnips"),
        ("the honey", "honey dripped", "ants ate the honey"),
        ("the paint", "paint dried", "the paint was dry"),
        ("the pig", "a pig slept", "the pig woke up"),
        ("the choir", "a choir sang", "the choir went hoarse"),
    )
)

KNEIPHOF, ALTSTADT, VORSTADT, LOMSE = SHORES = tuple(
    Word({"": name}, once=False) for name in ("Kneiphof", "Altstadt", "Vorstadt", "Lomse")
)
SPAN = {  # the two shores of each bridge, as in Euler's paper of 1736
    "Blacksmith's": (ALTSTADT, KNEIPHOF),
    "Merchant's": (ALTSTADT, KNEIPHOF),
    "Green": (KNEIPHOF, VORSTADT),
    "Giblet": (KNEIPHOF, VORSTADT),
    "Honey": (KNEIPHOF, LOMSE),
    "Wooden": (ALTSTADT, LOMSE),
    "High": (VORSTADT, LOMSE),
}
BRIDGES = tuple(Word({"": f"the {name} Bridge", "name": name}) for name in SPAN)
BRIDGE_NAMED = {str(bridge): bridge for bridge in BRIDGES}


def shores_of(bridge: Word) -> tuple[Word, Word]:
    """Return the two shores that a bridge joins."""
    return SPAN[bridge.forms["name"]]


def across(bridge: Word, shore: Word) -> Word:
    """Return the shore at the other end of a bridge."""
    one, other = shores_of(bridge)
    return other if shore is one else one


def crossings(shore: Word) -> tuple[Word, ...]:
    """Return the ways over a bridge from a shore, each with the shore it leads `to`; every such shore is as likely."""
    over = [(bridge, across(bridge, shore)) for bridge in BRIDGES if shore in shores_of(bridge)]
    ends = [end for _, end in over]
    return tuple(
        Word({"": str(bridge), "to": str(end)}, once=False, weight=1 / ends.count(end))
        for bridge, end in over
    )


CROSSINGS = {shore: crossings(shore) for shore in SHORES}


def odd_shores(bridges: Sequence[Word]) -> tuple[Word, ...]:
    """Return the shores at which an odd number of the given bridges ends."""
    ends = [shore for bridge in bridges for shore in shores_of(bridge)]
    return tuple(shore for shore in SHORES if ends.count(shore) % 2)


def joined(bridges: Sequence[Word]) -> bool:
    """Say whether the given bridges hang together, so that one can get from each to every other."""
    reached, grown = set(), set(shores_of(bridges[0]))
    while grown - reached:
        reached |= grown
        grown = {
            shore for bridge in bridges if reached & set(shores_of(bridge)) for shore in shores_of(bridge)
        }
    return all(reached >= set(shores_of(bridge)) for bridge in bridges)


def euler_walk(bridges: Sequence[Word]) -> Word:
    """Say between which shores a walk crosses every given bridge just once, as Euler decided it in 1736."""
    odd = odd_shores(bridges)
    return WALKS[odd if joined(bridges) and len(odd) <= 2 else None]


WALKS = {
    None: Word({"": "No", "so": "there is no such walk"}),
    (): Word({"": "Yes, from anywhere", "so": "the walk can start anywhere"}),
} | {
    (one, other): Word({"": f"Yes, from {one} to {other}", "so": f"the walk leads from {one} to {other}"})
    for i, one in enumerate(SHORES)
    for other in SHORES[i + 1 :]
}
