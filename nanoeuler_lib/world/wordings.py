"""Other wordings of Königsberg's questions: some to teach, some never taught, to see what was learnt.

The corpus asks each question in one wording, and a model that has read no other answers no other. Of each kind of
question `WORDINGS` holds fourteen more, `MORE` about thirty by a second author, `STILL_MORE` about forty by a third.
Three of each of the first two lists, drawn by lot, are never taught. `READERS` are wordings that a reader typed when
the chat model knew one of each question; they are never taught either. Chapter 20.
"""

from functools import cache
from random import Random

from nanoeuler_lib.world.grammar import Slot, capitalised, parts_of
from nanoeuler_lib.world.more_wordings import MORE, STILL_MORE
from nanoeuler_lib.world.stories import Question
from nanoeuler_lib.world.story import Story
from nanoeuler_lib.world.town import CRIMES, PEOPLE

UNTAUGHT = 3  # wordings of each kind of question, in each of two lists
NAMED = {str(word): word for word in (*CRIMES, *PEOPLE)}  # what a wording needs in another form than its name

WORDINGS = {  # kind of story: kind of question
    "errand: holder": (
        "Who has got {thing} now?", "Who has {thing} in the end?", "Who ended up with {thing}?",
        "With whom is {thing} now?", "Who is keeping {thing}?", "In whose hands is {thing}?",
        "Who was {thing} left with in the end?", "Tell me who has {thing}.",
        "Who was the last to get {thing}?", "Who got {thing} last?", "Do you know who has {thing}?",
        "Who carries {thing} now?", "Name the one who has {thing}.", "At whose place is {thing}?",
    ),
    "errand: before": (
        "From whom did {taker} get {thing}?", "From whom did {taker} have it?",
        "Who handed {thing} on to {taker}?", "Who had {thing} just before {taker}?",
        "Who was the last to have it before {taker}?", "{taker} got {thing} from whom?",
        "Who held it before {taker}?", "Who lost {thing} to {taker}?", "Who parted with {thing} to {taker}?",
        "Tell me who had {thing} before {taker}.", "Before {taker} got it, who had {thing}?",
        "Who let {taker} have it?", "Before {taker}, who had it?", "Out of whose hands did {taker} get it?",
    ),
    "errand: owner": (
        "Whose is {thing}?", "To whom does {thing} belong?", "Who is the owner of {thing}?",
        "Who is looking for {thing}?", "Who would like {thing} back?", "Who came for {thing}?",
        "Who is missing {thing}?", "Who should get {thing} back?", "To whom must {thing} be returned?",
        "Tell me who wants {thing} back.", "Who went to look for {thing}?",
        "Who hopes to see {thing} again?", "Who is after {thing}?", "Who is waiting for {thing}?",
    ),
    "errand: first": (
        "Who had {thing} in the beginning?", "Who was the first to have {thing}?", "Who had {thing} first?",
        "Who started out with {thing}?", "Who was given {thing} to begin with?", "Who set out with {thing}?",
        "At the start, who had {thing}?", "Who was meant to look after {thing}?",
        "To whom did {b} give {thing}?", "Whom did {b} trust with {thing}?",
        "Who carried {thing} at the start?", "Tell me who had {thing} at first.",
        "In the beginning, who carried {thing}?", "With whom did {thing} begin its way?",
    ),
    "belief: where": (
        "Where is {small} now?", "Where can one find {small}?", "What is {small} in?",
        "Where did {mover} put {small}?", "Where is {small} really?", "Where was {small} moved to?",
        "Where does {small} lie now?", "Where is {small} in the end?", "What place is {small} in?",
        "Tell me where {small} is.", "Do you know where {small} is?", "Where did {small} end up?",
        "In which place is {small} hidden now?", "To what place did {mover} move {small}?",
    ),
    "belief: looks": (
        "Where did {out} search?", "Where did {out} look for {small}?", "In which place did {out} look?",
        "Where did {out} try to find {small}?", "Where did {out} go and look?",
        "Back home, where did {out} look?", "Which place did {out} search?",
        "Where was {out} looking for it?", "Tell me where {out} looked.", "Where did {out} seek {small}?",
        "Where did {out} hope to find {small}?", "On coming back, where did {out} look?",
        "Where did {out} go to get {small}?", "What place did {out} try?",
    ),
    "belief: believes": (
        "Where does {home} think {small} is?", "Where would {home} search for {small}?",
        "Where does {home} believe {small} to be?", "If {home} wanted {small}, where would {home} look?",
        "Where would {home} go for {small}?", "In which place would {home} look for {small}?",
        "Where does {home} suppose {small} is?", "Tell me where {home} would look.",
        "Where would {home} try first?", "Where does {home} expect {small}?",
        "Where will {home} look for it?", "What place would {home} try?",
        "Where would {home} hope to find {small}?", "Where might {home} look?",
    ),
    "belief: mover": (
        "Who put {small} in {other}?", "Who took {small} to {other}?", "Who brought {small} to {other}?",
        "By whom was {small} moved?", "Who carried {small} off?", "Who put it somewhere else?",
        "Tell me who moved {small}.", "Who was it that moved {small}?", "Who changed the place of {small}?",
        "Who dropped {small} into {other}?", "Who gave {small} a new place?", "Who hid {small} in {other}?",
        "Who is to blame for moving {small}?", "Thanks to whom is {small} in {other}?",
    ),
    "debt: owes": (
        "How much does {a} owe {b} now?", "How much does {a} still owe?", "What does {a} owe in the end?",
        "How many Groschen does {a} owe now?", "What is the debt now?", "How big is the debt in the end?",
        "How much is still owed?", "How much must {a} still pay {b}?", "What is left to pay?",
        "How much money does {b} still get from {a}?", "Tell me how much {a} owes now.",
        "What is the debt of {a} at the end?", "How much does {b} wait for?", "What sum does {a} owe today?",
    ),
    "debt: start": (
        "How much was owed at first?", "How much did {a} owe in the beginning?",
        "What was the debt at the start?", "How many Groschen did {a} owe at first?",
        "How big was the debt at first?", "With how much did it begin?", "What did {a} owe to begin with?",
        "How much was the first debt?", "Tell me how much it was at first.",
        "How large was the debt in the beginning?", "What was the sum at first?",
        "Before anything was paid, how much was it?", "How much did {a} owe {b} at the start?",
        "What did the debt begin with?",
    ),
    "debt: creditor": (
        "Who lent {a} money?", "Who got money from {a}?", "Who was {a} in debt to?",
        "With whom did {a} have debts?", "Who waited for money from {a}?", "Who was to be paid by {a}?",
        "{a} owed whom?", "Whose debtor was {a}?", "Tell me whom {a} owed.", "From whom had {a} borrowed?",
        "Who was owed by {a}?", "Who wanted money from {a}?", "Whom must {a} pay?",
        "To whom must {a} pay it back?",
    ),
    "debt: debtor": (
        "Who owed money to {b}?", "Who had debts with {b}?", "Who was in debt to {b}?",
        "Who borrowed from {b}?", "Who had to pay {b}?", "To whom had {b} lent money?",
        "From whom did {b} want money?", "Who was the debtor?", "Who owed {b} Groschen?",
        "Tell me who owed {b}.", "Who was to pay {b} back?", "Whose money did {b} wait for?",
        "Whom did {b} ask for money?", "Who took a loan from {b}?",
    ),
    "market: cost": (
        "How much did the {ware} cost?", "What was the price of the {ware}?", "How much were the {ware}?",
        "What did {a} pay for the {ware}?", "How much money went on the {ware}?",
        "What did the {ware} come to?", "How many Groschen were the {ware}?", "How much for the {ware}?",
        "Tell me what the {ware} cost.", "What did one pay for all the {ware}?", "The {ware} cost how much?",
        "How dear were the {ware}?", "What was paid for the {ware}?", "What did the {ware} cost {a}?",
    ),
    "market: total": (
        "How much did {a} spend?", "What did it all cost?", "How much was it all together?",
        "What was the sum?", "How much did {a} pay in all?", "What did everything cost?",
        "How many Groschen did {a} spend?", "What was the total?", "How much money did {a} spend in all?",
        "Tell me what {a} spent.", "How much was it in the end?", "All told, how much was it?",
        "What did {a} pay for everything?", "How much was the whole bill?",
    ),
    "market: change": (
        "How much was left of twenty?", "How much did {a} get back?", "What was the change?",
        "How many Groschen were left?", "How much money did {a} keep?", "What was left over?",
        "How many of the twenty were left?", "What remained of twenty?",
        "How much of the twenty did {a} keep?", "Tell me what was left of twenty.",
        "How much change was there?", "What did {a} get back from twenty?",
        "How many were left over from twenty?", "After paying with twenty, what was left?",
    ),
    "market: extra": (
        "What else did {a} buy?", "What did {a} buy besides the {ware}?", "What was bought on top?",
        "What did {a} take as well?", "What more did {a} get?", "Which other thing did {a} buy?",
        "Besides {ware}, what was bought?", "What was the extra?", "What was added to the {ware}?",
        "Tell me what came on top.", "What did {a} get with the {ware}?",
        "What was the last thing that {a} bought?", "Apart from the {ware}, what did {a} pay for?",
        "What did {a} buy last?",
    ),
    "letter: brings": (
        "What should {b} bring?", "What did {a} ask {b} to bring?", "What did {a} want {b} to bring?",
        "Which thing was {b} to bring?", "What did the letter ask for?", "What did {a} want?",
        "What had {b} to take along?", "With what should {b} come?", "Tell me what {b} was to bring.",
        "What did {b} bring?", "What was {b} to carry?", "What thing did the letter speak of?",
        "What did {a} wish to get from {b}?", "What was {b} to have with {b.him}?",
    ),
    "letter: meets": (
        "Where should {b} come?", "Where was {b} to go?", "Where did {a} want to meet {b}?",
        "Where did {a} send {b}?", "To which place was {b} to come?", "Where did the letter send {b}?",
        "Where were they to meet?", "Where was the meeting?", "Where did {b} go?",
        "Tell me where {b} was to come.", "Where did {a} ask {b} to come?",
        "To what place did the letter call {b}?", "Where was {thing} to be brought?", "Where had {b} to be?",
    ),
    "letter: late": (
        "How late was the letter?", "How many days late was it?", "By how many days was it late?",
        "How many days did the letter take?", "How long did the letter lie about?", "How late did {b} come?",
        "How much too late was it?", "How long was the delay?", "How many days too late was {b}?",
        "Tell me how late it was.", "How many days passed?", "How long did {b} wait for the letter?",
        "What was the delay?", "How many days did it lose on the way?",
    ),
    "letter: carrier": (
        "Who carried the letter?", "Who delivered the letter?", "Who gave {b} the letter?",
        "By whom was the letter brought?", "Who had the letter all the time?", "Who was the messenger?",
        "Who kept the letter so long?", "Who took the letter to {b}?", "Tell me who brought the letter.",
        "Who handed over the letter?", "Who came with the letter?", "Who should have brought it sooner?",
        "Who let the letter lie?", "In whose hands was the letter on its way?",
    ),
    "letter: writer": (
        "Who wrote to {b}?", "Whose letter was it?", "By whom was the letter written?",
        "Who was the writer of the letter?", "Who wanted {b} to come?", "Who asked {b} to come?",
        "Who wrote it?", "Who called {b} to {spot}?", "Tell me who wrote the letter.",
        "Whose words did {b} read?", "Who put pen to paper?", "Who wished to see {b}?",
        "Who asked for {thing}?", "From whom was the letter?",
    ),
    "walk: place": (
        "Where is {a} in the end?", "Where did {a} end up?", "In which part of town is {a} now?",
        "Where can one find {a}?", "Where did the walk of {a} end?", "Where does {a} stand now?",
        "On which shore is {a} now?", "At the end, where is {a}?", "Where has {a} got to?",
        "Tell me where {a} is.", "Where did {a} come to in the end?", "Where is {a} at last?",
        "Do you know where {a} is?", "Where did {a} finish?",
    ),
    "walk: left": (
        "Where did {a} leave {thing}?", "Where did {a} forget {thing}?", "Where is {thing}?",
        "Where did {a} lose {thing}?", "Where was {thing} forgotten?", "Where does {thing} lie?",
        "In which part of town was {thing} left?", "Where did {thing} stay?", "Where was {thing} found?",
        "Tell me where {thing} was left.", "Where must one look for {thing}?",
        "In what place did {a} put down {thing}?", "Where did {a} part with {thing}?",
        "Where was {thing} put down?",
    ),
    "walk: crossed": (
        "Which bridge did {a} cross first?", "What was the first bridge?",
        "Over which bridge did {a} go first?", "Which bridge was the first?",
        "By which bridge did {a} leave {shore}?", "Which bridge did {a} take first?",
        "The first bridge was which one?", "What bridge did {a} walk over first?",
        "Tell me which bridge came first.", "Over which bridge was {thing} carried?",
        "With which bridge did the walk begin?", "What is the name of the first bridge?",
        "Which bridge took {a} out of {shore}?", "Which bridge did {thing} go over?",
    ),
    "walk: home": (
        "Where did {a} set out?", "Where did {a} come from?", "Where was {a} at first?",
        "Where did the walk start?", "From where did {a} set off?", "Where was the start of the walk?",
        "In which part of town did {a} start?", "What part of town did {a} leave?",
        "Where was {a} in the beginning?", "Tell me where {a} started.", "From which shore did {a} leave?",
        "Where had {a} been at the start?", "Which shore did {a} leave behind?",
        "Where did {a} take the first step?",
    ),
    "bridges: walk": (
        "Is there such a walk now?", "Can one walk over all open bridges now?", "Does a walk exist now?",
        "Is a walk over all of them possible now?", "Can all open bridges be crossed once each?",
        "Does it work now?", "Is there a walk over the open bridges?", "Can one cross each bridge once now?",
        "Is such a walk possible?", "Tell me if there is a walk now.",
        "Is there a way over all of them now?", "Would a walk be possible now?",
        "Is there a walk in the end?", "Could one walk over each open bridge once?",
    ),
    "bridges: open": (
        "How many bridges are open now?", "How many are open in the end?", "What number of bridges is open?",
        "How many bridges can one use now?", "How many open bridges are there?",
        "How many of the bridges are not closed?", "How many of the seven are open?",
        "Tell me how many bridges are open.", "How many bridges does the town have open?",
        "How many bridges may one walk over?", "What is the number of open bridges?",
        "How many bridges remain open?", "In the end, how many bridges are open?", "Count the open bridges.",
    ),
    "bridges: closed": (
        "Which bridge closed first?", "Which bridge was closed first?",
        "Which bridge was the first to close?", "What bridge was closed at first?",
        "On which bridge did the trouble begin?", "Which bridge could nobody cross at first?",
        "The first closed bridge was which one?", "Which one was shut first?",
        "Tell me which bridge closed first.", "Which bridge was blocked first?",
        "At first, which bridge was closed?", "Which bridge was closed at the start?",
        "What was the first bridge to be closed?", "Which bridge was left out of the walk?",
    ),
    "bridges: ended": (
        "Where did {a} end up?", "Where did the walk of {a} end?", "In which part of town did {a} end?",
        "Where was {a} at the end of the walk?", "Where did {a} arrive?", "Where did {a} stop?",
        "On which shore did {a} end?", "What was the end of the walk?", "To where did {a} walk?",
        "Tell me where {a} ended.", "Where did {a} get to?", "What part of town did {a} reach?",
        "Where did {a} finish the walk?", "Where was the walk of {a} over?",
    ),
    "bridges: walker": (
        "Who walked over six bridges first?", "Who was the first to cross six bridges?",
        "Who did the walk first?", "Who walked over the other six?", "Who made the walk?",
        "Who took the other six first?", "Who crossed the other six?",
        "By whom were the six bridges crossed first?", "Tell me who crossed six bridges first.",
        "Who went over all six?", "Who was first over the six bridges?", "Who walked first?",
        "Who showed that it works?", "Whose walk over six bridges was the first?",
    ),
    "culprit: culprit": (
        "Who did it?", "Who was it that {crime.did}?", "Who was the culprit?", "Which of the three did it?",
        "Who is to blame?", "Whose doing was it?", "Who is guilty?", "Tell me who {crime.did}.",
        "Which of them {crime.did}?", "Who was to blame in the end?", "Do you know who {crime.did}?",
        "By whom was it done?", "Which of the three {crime.did}?", "Who was found out?",
    ),
    "culprit: alibi": (
        "Where had {x} been?", "Where was {x} at that time?", "Where was {x} seen?",
        "Where did {witness} see {x}?", "In what place was {x}?", "What was the alibi of {x}?",
        "Where was {x} all the while?", "Where did {x} spend that time?", "Tell me where {x} was.",
        "Where was {x} when it was done?", "Where was {x} found?", "Do you know where {x} was?",
        "Where was {x} in truth?", "What place was {x} in?",
    ),
    "culprit: friend": (
        "With whom was {y}?", "Who was {y} with?", "Who kept {y} company?", "In whose company was {y}?",
        "Whom was {y} with?", "Who was at the side of {y}?", "Who spent that time with {y}?",
        "With whom did {y} spend the time?", "Tell me who was with {y}.", "Who was there with {y}?",
        "Who can say where {y} was?", "Whose company did {y} have?", "Who was together with {y}?",
        "Thanks to whom is {y} innocent?",
    ),
    "culprit: witness": (
        "Who saw {x}?", "Who was the witness for {x}?", "Who swore for {x}?", "Who said where {x} was?",
        "Who cleared {x}?", "Whose word saved {x}?", "Who could speak for {x}?", "Who stood up for {x}?",
        "Who was witness to where {x} was?", "Tell me who spoke for {x}.", "Who knew where {x} was?",
        "Who had seen {x}?", "By whom was {x} seen?", "Thanks to whom is {x} innocent?",
    ),
}  # fmt: skip

READERS = {
    "errand: holder": "Who holds {thing}?",
    "errand: owner": "Who owns {thing}?",
    "debt: creditor": "To whom did {a} owe money?",
    "letter: brings": "What was {b} told to bring?",
    "letter: writer": "Who sent the letter?",
    "walk: home": "Where did {a} begin?",
    "bridges: open": "How many bridges can be crossed?",
}


@cache
def untaught(kind: str) -> tuple[str, ...]:
    """Wordings of a kind of question ("errand: holder"), drawn by lot from `WORDINGS`: no training has shown them."""
    return _drawn(WORDINGS[kind])


@cache
def tried(kind: str) -> tuple[str, ...]:
    """Wordings drawn by lot from `MORE`: no training has shown them, but its length was chosen by them."""
    return _drawn(MORE[kind])


@cache
def taught(kind: str) -> tuple[str, ...]:
    """The other wordings of a kind of question; the corpus's own is not among them."""
    every = *WORDINGS[kind], *MORE[kind], *STILL_MORE[kind]
    return tuple(wording for wording in every if wording not in untaught(kind) + tried(kind))


def _drawn(wordings):
    lots = {wording: Random(wording).random() for wording in wordings}
    return tuple(sorted(lots, key=lots.get)[:UNTAUGHT])


def reworded(story: Story, question: Question, random: Random) -> str:
    """The question in a wording that may be taught, as people type: sometimes without its capital or its mark.

    The corpus's own wording is as likely as each of the others.
    """
    choices = taught(f"{story.kind}: {question.kind}")
    choice = int(random.random() * (len(choices) + 1))
    text = question.text if choice == len(choices) else in_words(story, choices[choice])
    return carelessly(text, random)


def in_words(story: Story, wording: str) -> str:
    """A wording, filled from the facts of a story."""
    pieces = []
    for part in parts_of(capitalised(wording)):
        if not isinstance(part, Slot):
            pieces.append(part.decode())
        elif part.form:
            pieces.append(part.fill(NAMED[story.facts[part.name]]))
        else:
            text = story.facts[part.name]
            pieces.append(capitalised(text) if part.capital else text)
    return "".join(pieces)


def carelessly(text: str, random: Random) -> str:
    """One text in four begins small, one in four has lost the mark at its end."""
    if random.random() < 0.25:
        text = text[0].lower() + text[1:]
    return text[:-1] if random.random() < 0.25 else text
