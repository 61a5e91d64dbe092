"""Import of other products' data into a Shoal home, for packages that read this data.

A reader creates a `Found`. It contains agents with their files and memory, conversations, schedules, accounts,
providers, and skipped items with the reason. `bring_into` imports it once. Imported items are inactive.
"""

from shoal.files.deep_folders import walk as walk
from shoal.importing.bring import ImportLine as ImportLine
from shoal.importing.bring import bring_into as bring_into
from shoal.importing.found import Entry as Entry
from shoal.importing.found import Found as Found
from shoal.importing.found import FoundAccount as FoundAccount
from shoal.importing.found import FoundAgent as FoundAgent
from shoal.importing.found import FoundProvider as FoundProvider
from shoal.importing.found import FoundSchedule as FoundSchedule
from shoal.importing.found import FoundSkill as FoundSkill
from shoal.importing.found import FoundThread as FoundThread
from shoal.importing.found import ImportedMessage as ImportedMessage
from shoal.importing.found import Json as Json
from shoal.importing.found import Left as Left
from shoal.importing.found import as_dict as as_dict
from shoal.importing.found import as_list as as_list
from shoal.importing.found import clean as clean
from shoal.importing.found import counted as counted
from shoal.importing.found import cron_of as cron_of
from shoal.importing.found import day_of as day_of
from shoal.importing.found import distinct as distinct
from shoal.importing.found import message_text as message_text
from shoal.importing.found import number_of as number_of
from shoal.importing.found import parsed as parsed
from shoal.importing.found import slug as slug
from shoal.importing.found import text_of as text_of
from shoal.importing.found import time_of as time_of
from shoal.kernel.zones import local_zone as local_zone
from shoal.kernel.zones import zone_named as zone_named
from shoal.turn.skills import SKILL_FILE as SKILL_FILE
from shoal.turn.skills import is_skill_file as is_skill_file
from shoal.turn.text_files import SKILL_DEPTH_MAX as SKILL_DEPTH_MAX
