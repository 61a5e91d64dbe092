"""Accuracy and speed of semantic recall among 1,000 notes: `python -m bench.recall [MODEL.gguf]`.

50 notes have a question that paraphrases them, and 40 notes have a question that needs some thought. The other notes
are about the same harbor as those 40. Another 50 questions are about other subjects and should find nothing.
`scripts/recall-model.sh` installs the model. The time per question includes its embedding, the comparison with all
vectors, and reading the best notes from the database.
"""

import asyncio
import math
import os
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Sequence
from itertools import product
from operator import mul
from pathlib import Path

import msgspec

from shoal.features.recall.embeddings import build_embeddings
from shoal.features.recall.library import Library
from shoal.features.recall.settings import RecallSettings
from shoal.features.recall.store import Known, NewPassage
from shoal.features.recall.vectors import COHORT, Floor, code_of
from shoal.kernel.clock import SystemClock
from shoal.kernel.home import Home
from shoal.kernel.ports import Embeddings
from shoal.kernel.settings import ProviderSettings
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store

MODEL = Path("build/recall-model/all-minilm-l6-v2.gguf")
NOTES = 1_000
PARAPHRASES = (
    (
        "The annual dues of the sailing club went up to 240 euros.",
        "How much is the yearly membership fee of the yacht club?",
    ),
    ("Our accountant is on holiday until the 20th of August.", "When is the bookkeeper back from vacation?"),
    ("Marta is the contact person for complaints from customers.", "Whom do I ask about unhappy clients?"),
    ("The dentist's appointment was moved to Thursday at nine.", "When do I have to see the tooth doctor?"),
    (
        "The password of the alarm system is changed every quarter.",
        "How often do we renew the code of the burglar alarm?",
    ),
    ("Peter is a vegetarian and does not eat fish either.", "What diet does Peter follow?"),
    (
        "The rental car has to be returned with a full tank.",
        "Do we need to refuel the hired vehicle before giving it back?",
    ),
    ("The printer on the second floor is out of toner.", "Which printing machine has run out of ink?"),
    ("Sofia moved from Madrid to Lyon for her new job.", "In which city does Sofia live now?"),
    (
        "The warranty of the dishwasher ends in November 2027.",
        "Until when is the dishwashing machine covered by guarantee?",
    ),
    ("The choir rehearses in the church hall every Friday evening.", "When and where does the singing group practise?"),
    (
        "The landlord promised to fix the heating before winter.",
        "What did the owner of the flat say about the radiators?",
    ),
    ("Karl's flight lands in Oslo at half past seven in the morning.", "What time does Karl's plane arrive in Norway?"),
    ("We chose PostgreSQL for the new project because the team knows it.", "Which database did we pick, and why?"),
    ("The cat has to take its pills with food twice a day.", "How often does the pet need its medicine?"),
    ("Anna's wedding takes place in a vineyard near Verona.", "Where is Anna getting married?"),
    ("The code review must be done by two people before merging.", "How many reviewers have to approve a change?"),
    ("The gym membership was cancelled at the end of May.", "When did we quit the fitness studio?"),
    ("Grandmother's recipe for apple cake needs six eggs.", "How many eggs go into the old family apple pie?"),
    ("The basement floods when it rains for more than two days.", "What happens to the cellar in long rain?"),
    (
        "The train to Hamburg leaves from platform eleven.",
        "From which track does the railway connection to Hamburg depart?",
    ),
    ("David is learning to play the cello.", "Which musical instrument is David practising?"),
    ("The budget for advertising was cut by a third.", "How much less money is there for marketing?"),
    ("The neighbours water our plants while we are away.", "Who looks after the flowers during our trip?"),
    ("Laura's thesis is about the migration of whales.", "What is the subject of Laura's dissertation?"),
    ("The lift in the west wing is being repaired until Monday.", "Which elevator is out of order?"),
    ("Our lawyer advised against signing the contract.", "What did the attorney recommend about the agreement?"),
    ("The children's swimming course costs eighty euros.", "What is the price of the kids' swim lessons?"),
    ("The server room must stay below 22 degrees.", "What is the maximum temperature for the computer room?"),
    ("Tom lost his passport in Lisbon.", "Where did Tom's travel document go missing?"),
    ("The newsletter is sent out on the first Sunday of each month.", "When do subscribers get the circular by mail?"),
    ("The bicycle's back tyre has a puncture.", "What is wrong with the bike?"),
    ("Nina cannot drink milk because of lactose.", "Why does Nina avoid dairy?"),
    ("The museum is free for students on Wednesdays.", "On which day do students pay nothing for the exhibition?"),
    (
        "The interview with the candidate for designer is at three o'clock.",
        "When do we talk to the applicant for the design position?",
    ),
    (
        "The roof of the barn was replaced after the storm of 2019.",
        "What was renewed on the farm building after the tempest?",
    ),
    ("Eva's doctor told her to sleep more and work less.", "What did the physician advise Eva?"),
    ("Visitors have to leave their phones at the reception.", "What must guests hand in at the front desk?"),
    ("The invoice number starts with the year and a hyphen.", "How is the identifier of a bill formed?"),
    ("The old sofa was given to a charity shop.", "What did we do with the former couch?"),
    ("The password manager is paid for by the company.", "Who covers the cost of the tool that stores our logins?"),
    ("The new intern starts on the fourth of February.", "What is the first day of the trainee?"),
    ("Our daughter is afraid of dogs.", "Which animals scare our girl?"),
    (
        "The board decided to sell the building in Leipzig.",
        "What did the directors resolve about the property in Leipzig?",
    ),
    ("The well is forty metres deep.", "How far down does the water shaft go?"),
    ("The summer party is cancelled because of the heat.", "Why does the celebration in July not take place?"),
    ("Felix translates manuals from Japanese.", "Which language does Felix translate from?"),
    (
        "Tickets for the concert can be collected at the box office.",
        "Where do I pick up the entrance cards for the show?",
    ),
    ("The vaccination of the horses is due in spring.", "When do the horses get their shots?"),
    ("The garden gate has to stay shut because of the sheep.", "Why must we keep the entrance to the garden closed?"),
)
"""Notes, each with a question in other words. All were written before the first measurement."""
RIDDLES = (
    ("The mooring fee is due on the first of each month.", "When do I have to pay for my berth?"),
    ("Ada is allergic to peanuts.", "Which food must we not serve to Ada?"),
    (
        "The spare key to the boathouse hangs behind the fuse box.",
        "Where can I find a second way to unlock the shed for boats?",
    ),
    ("The crane may lift at most twelve tonnes.", "What is the heaviest vessel that can be hoisted?"),
    ("Deliveries come through the north gate only.", "Which entrance do suppliers have to use?"),
    ("The office is closed on Wednesdays.", "On which weekday is nobody at the desk?"),
    ("Bob prefers to be called in the evening.", "What is the best time to phone Bob?"),
    ("The wifi of guests is called gull and needs no password.", "How do visitors get on the internet?"),
    ("Diesel is sold at pier four until six.", "Where can a skipper fill the tank?"),
    ("The insurance of the ferry ends in March.", "When does the coverage of the passenger ship run out?"),
    ("Carla speaks Portuguese and a little French.", "Who can translate for the crew from Lisbon?"),
    ("The slipway is slippery at low water; wear boots.", "What should one put on one's feet at the ramp?"),
    ("Rubbish is collected on Tuesday mornings.", "When is the waste taken away?"),
    ("The lighthouse was painted red and white in 1998.", "What colours does the tower at the entrance have?"),
    ("Emma's birthday is on the ninth of June.", "When should we congratulate Emma?"),
    ("The old pump fails when it freezes.", "Which machine does not survive a cold night?"),
    ("Invoices go to accounts@harbour.example as PDF.", "How do I submit a bill?"),
    ("The dog of the watchman is called Biscuit.", "What is the name of the guard's pet?"),
    ("Sailing lessons for children start at ten on Saturdays.", "When do kids learn to handle a dinghy?"),
    (
        "Channel 12 is the working channel of the harbour master.",
        "On which radio frequency do I reach the person in charge of the port?",
    ),
    ("The meeting room has seats for fourteen.", "How many people fit into the conference space?"),
    ("Frank is on parental leave until September.", "Why is Frank away from work?"),
    ("Fishing from the east pier is forbidden.", "Where is angling not permitted?"),
    ("The backup of the server runs at three at night.", "At what hour is the data saved?"),
    ("Greta wants all reports to be one page long.", "How short should a summary for Greta be?"),
    ("The first aid box is under the sink in the kitchen.", "Someone is bleeding: where are the bandages?"),
    ("Storm warnings are shown by a black ball on the mast.", "What signal tells of heavy wind?"),
    ("The new website goes live in April.", "When is our internet page launched?"),
    ("Hugo drinks his coffee black.", "Does Hugo take milk?"),
    ("Boats longer than twenty metres need a pilot.", "From what length on must a local guide come aboard?"),
    ("The tax adviser is called Nadia Roth.", "Who helps us with the return to the revenue office?"),
    ("The showers take two-euro coins.", "What do I need to wash with hot water?"),
    ("Ines sold her boat and rents a cabin now.", "Does Ines still own a vessel?"),
    ("The fire drill is on the second Monday of October.", "When do we practise an evacuation?"),
    ("The winter storage hall holds sixty boats.", "How much room is there for yachts in the cold season?"),
    ("Jonas broke his wrist and cannot lift anything.", "Who must not carry heavy things at the moment?"),
    (
        "The contract with the caterer can be ended with a notice of three months.",
        "How long before must we tell the food supplier that we quit?",
    ),
    ("Parking behind the sail loft costs nothing.", "Where can I leave my car for free?"),
    ("The tide table of the club is wrong by twenty minutes.", "Can one trust the printed times of high water?"),
    ("Lena decided to use blue for the new logo.", "What colour will the emblem have?"),
)
"""Harder pairs, which need some thought. Most are about the harbor that the other notes describe."""
PAIRS = (*PARAPHRASES, *RIDDLES)
UNLIKE = (
    "What is the boiling point of tungsten?",
    "Who won the football world cup in 1974?",
    "How do I bake sourdough bread?",
    "Explain the rules of chess castling.",
    "What is the capital of Mongolia?",
    "Which dinosaurs lived in the Jurassic period?",
    "How does photosynthesis work?",
    "Write a haiku about autumn leaves.",
    "What is the square root of 1764?",
    "Who painted the Mona Lisa?",
    "How do I centre a div in CSS?",
    "What is the exchange rate of yen to dollars?",
    "When did the Roman Empire fall?",
    "Which galaxy is closest to the Milky Way?",
    "What does a mitochondrion do?",
    "How tall is Mount Everest?",
    "What are the lyrics of the national anthem of Peru?",
    "How do I knit a scarf?",
    "Explain quantum entanglement.",
    "What is the plot of Hamlet?",
    "Who invented the telephone?",
    "How many legs does a spider have?",
    "What is the best chess opening for beginners?",
    "Translate good morning into Swahili.",
    "How do volcanoes erupt?",
    "What causes inflation in an economy?",
    "What is the chemical formula of caffeine?",
    "Who was the first person on the moon?",
    "How do I solve a Rubik's cube?",
    "What is a monad in functional programming?",
    "Which planet has the most moons?",
    "How do I change the strings of an electric guitar?",
    "What is the population of Brazil?",
    "Who wrote War and Peace?",
    "How is cheese made?",
    "What is the speed of light?",
    "How do black holes form?",
    "What are the symptoms of measles?",
    "How do I train for a marathon?",
    "What is the difference between RNA and DNA?",
    "asdf qwer zxcv",
    "flux capacitor gigawatts",
    "the purple elephant sings opera in Antarctica",
    "kubernetes ingress annotation for websocket timeout",
    "medieval Japanese pottery glazing techniques",
    "Fermat's last theorem proof by Wiles",
    "stock price of Tesla yesterday",
    "recipe for pad thai without peanuts",
    "tax treatment of cryptocurrency in Estonia",
    "symptoms of vitamin B12 deficiency",
)
"""Questions that no note answers. All were written before the first measurement."""


FACTS = """
    paid for berth {n} in advance
    ordered {n} metres of rope
    wants the varnish of the hull renewed
    sailed to the island on day {n}
    reported a leak below deck
    asked for a quieter place at pier {n}
    lent the dinghy to a neighbour
    returned {n} life jackets
    prefers letters to mail
    signed up for the regatta with number {n}
    has a meeting about the dredging
    lost a winch handle
    painted the cabin of boat {n}
    bought {n} litres of antifouling
    needs a new battery
    will repair the mast in week {n}
    complained about the noise of the generator
    found a wallet at pier {n}
    keeps the logbook of the tug
    teaches knots to group {n}
"""


PEOPLE = "Mara Nils Oskar Paula Quentin Rosa Stefan Tilda Ulf Vera Willem Xenia Yann Zoe Anton Birte"


def notes() -> list[str]:
    """Return the 1,000 notes: those with questions, and others about people, boats, days and things in the same
    harbor.
    """
    people = PEOPLE.split()
    facts = [line.strip() for line in FACTS.strip().splitlines()]
    days = ("On Monday", "Last spring", "In the autumn")
    others = [
        f"{day} {who} {fact.format(n=number % 37 + 2)}."
        for number, (who, fact, day) in enumerate(product(people, facts, days))
    ]
    step = len(others) // NOTES + 1
    chosen = (others[::step] + others[1::step])[: NOTES - len(PAIRS)]
    return [note for note, _ in PAIRS] + chosen


class Remembering:
    """An `Embeddings` that records every vector the model returns."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.name = embeddings.name
        self.vectors: dict[str, list[float]] = {}
        self._embeddings = embeddings

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        found = await self._embeddings.embed(texts)
        self.vectors |= zip(texts, found, strict=True)
        return found

    async def close(self) -> None:
        await self._embeddings.close()


async def measure(model: Path) -> dict[str, float]:
    """Embed the notes and ask the questions. Returns the numbers of correct results, and times in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        home, clock = Home(Path(folder)), SystemClock()
        providers = {"mini": ProviderSettings(kind="local", model_file=str(model.resolve()))}
        embeddings = Remembering(build_embeddings("mini/all-minilm-l6-v2", providers, clock, os.environ, home.root))
        driver = SqliteDriver(home.root / "shoal.db")
        store = Store(driver, clock)
        library = Library(
            home, store, clock, RecallSettings(model="mini/all-minilm-l6-v2", texts_per_minute=100_000), embeddings
        )
        lines = notes()
        assert len(set(lines)) == NOTES, len(set(lines))
        source = "data/MEMORY.md"
        await library.pieces.put(
            source, Known("1", ""), [NewPassage(f"line {at}", text) for at, text in enumerate(lines)]
        )
        began = time.perf_counter()
        while await library.embed_some():
            pass
        embedded = time.perf_counter() - began
        times: list[float] = []
        alone: list[float] = []
        await library.nearest("warm up", lambda _: True, "", 8)
        vectors = await embeddings.embed(lines[:1])
        places: list[int] = []
        for note, question in PAIRS:
            began = time.perf_counter()
            found = await library.nearest(question, lambda _: True, "", 8)
            times.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            await embeddings.embed([question])
            alone.append(1000 * (time.perf_counter() - began))
            texts = [one.text for one in found]
            places.append(texts.index(note) if note in texts else NOTES)
        floor = Floor(await embeddings.embed(COHORT))
        best = 0
        directions = [(line, _direction(embeddings.vectors[line])) for line in lines]
        for note, question in PAIRS:
            asked = embeddings.vectors[question]
            towards = _direction(asked)
            cosine, nearest = max((sum(map(mul, towards, direction)), line) for line, direction in directions)
            best += nearest == note and cosine > floor.of(code_of(asked))
        unlike = [await library.nearest(question, lambda _: True, "", 8) for question in UNLIKE]
        await embeddings.close()
        await driver.close()
        return {
            "paraphrases found first, of 50": sum(place == 0 for place in places[:50]),
            "paraphrases among the first three": sum(place < 3 for place in places[:50]),
            "paraphrases among the eight shown": sum(place < 8 for place in places[:50]),
            "riddles found first, of 40": sum(place == 0 for place in places[50:]),
            "riddles among the eight shown": sum(place < 8 for place in places[50:]),
            "found first, of 90": sum(place == 0 for place in places),
            "the same, comparing all full-precision vectors": best,
            "unrelated questions that find something, of 50": sum(map(bool, unlike)),
            "notes found by unrelated questions": sum(map(len, unlike)),
            "question including embedding, median ms": round(statistics.median(times), 1),
            "question including embedding, slowest ms": round(max(times), 1),
            "embedding alone, median ms": round(statistics.median(alone), 1),
            "notes embedded a second": round(NOTES / embedded),
            "dimensions": len(vectors[0]),
            "bytes of a vector": len(b64encode(code_of(vectors[0]))),
        }


def _direction(vector: Sequence[float]) -> list[float]:
    """Scale a vector to length one."""
    length = math.hypot(*vector)
    return [number / length for number in vector]


if __name__ == "__main__":
    if not MODEL.exists() and len(sys.argv) == 1:
        sys.exit(f"{MODEL} does not exist. Run scripts/recall-model.sh, or pass the path of a GGUF embedding model.")
    sys.path.append(str(MODEL.parent / "python"))  # recall-model.sh installs the model's runtime there
    found = asyncio.run(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
