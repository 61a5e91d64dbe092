"""The effects of AgentDojo's functions, which its MCP server declares in the tools' annotations.

An annotation describes what the function does, not how Shoal should treat it. Each one includes the reason.
`open_world` is true if someone outside the user's own account sees the call: a recipient, a guest, a shop or a website.
"""

from typing import NamedTuple

MARK = "OBEY-THIS"
"""Text in every injection, by which the scripted model recognizes it."""


class Hints(NamedTuple):
    """A tool's annotations, and the reason for them."""

    read_only: bool
    destructive: bool
    open_world: bool
    reason: str

    @property
    def is_effect(self) -> bool:
        """Return whether a call changes something, or sends something to someone."""
        return not self.read_only or self.open_world


def _reads(reason: str, *, open_world: bool = False) -> Hints:
    return Hints(read_only=True, destructive=False, open_world=open_world, reason=reason)


def _adds(reason: str, *, open_world: bool = False) -> Hints:
    return Hints(read_only=False, destructive=False, open_world=open_world, reason=reason)


def _changes(reason: str, *, open_world: bool = False) -> Hints:
    return Hints(read_only=False, destructive=True, open_world=open_world, reason=reason)


OWN = "reads the user's own account"
CATALOGUE = "reads the travel agency's own catalogue"

FUNCTIONS: dict[str, Hints] = {
    # mail
    "send_email": _adds("other people get the mail; nothing is overwritten", open_world=True),
    "delete_email": _changes("deletes the mail"),
    "get_unread_emails": _adds("marks every mail that it returns as read"),
    "get_sent_emails": _reads(OWN),
    "get_received_emails": _reads(OWN),
    "get_draft_emails": _reads(OWN),
    "search_emails": _reads(OWN),
    "search_contacts_by_name": _reads(OWN),
    "search_contacts_by_email": _reads(OWN),
    # calendar
    "get_current_day": _reads("reads the date"),
    "search_calendar_events": _reads(OWN),
    "get_day_calendar_events": _reads(OWN),
    "create_calendar_event": _adds("participants get an invitation", open_world=True),
    "cancel_calendar_event": _changes("deletes the event and notifies participants", open_world=True),
    "reschedule_calendar_event": _changes("overwrites the time and notifies participants", open_world=True),
    "add_calendar_event_participants": _adds("new participants get an invitation", open_world=True),
    # drive
    "append_to_file": _adds("adds to a file on the user's own drive"),
    "search_files_by_filename": _reads(OWN),
    "create_file": _adds("adds a file to the user's own drive"),
    "delete_file": _changes("deletes the file"),
    "get_file_by_id": _reads(OWN),
    "list_files": _reads(OWN),
    "share_file": _adds("another person can read the file", open_world=True),
    "search_files": _reads(OWN),
    # travel
    "get_user_information": _reads(OWN),
    "get_all_hotels_in_city": _reads(CATALOGUE),
    "get_hotels_prices": _reads(CATALOGUE),
    "get_rating_reviews_for_hotels": _reads(CATALOGUE),
    "get_hotels_address": _reads(CATALOGUE),
    "get_all_restaurants_in_city": _reads(CATALOGUE),
    "get_cuisine_type_for_restaurants": _reads(CATALOGUE),
    "get_restaurants_address": _reads(CATALOGUE),
    "get_rating_reviews_for_restaurants": _reads(CATALOGUE),
    "get_dietary_restrictions_for_all_restaurants": _reads(CATALOGUE),
    "get_contact_information_for_restaurants": _reads(CATALOGUE),
    "get_price_for_restaurants": _reads(CATALOGUE),
    "check_restaurant_opening_hours": _reads(CATALOGUE),
    "get_all_car_rental_companies_in_city": _reads(CATALOGUE),
    "get_car_types_available": _reads(CATALOGUE),
    "get_rating_reviews_for_car_rental": _reads(CATALOGUE),
    "get_car_fuel_options": _reads(CATALOGUE),
    "get_car_rental_address": _reads(CATALOGUE),
    "get_car_price_per_day": _reads(CATALOGUE),
    "get_flight_information": _reads(CATALOGUE),
    "reserve_hotel": _changes("replaces the reservation and sends it to a hotel", open_world=True),
    "reserve_car_rental": _changes("replaces the reservation and sends it to a company", open_world=True),
    "reserve_restaurant": _changes("replaces the reservation and sends it to a restaurant", open_world=True),
    # bank
    "get_iban": _reads(OWN),
    "get_balance": _reads(OWN),
    "get_most_recent_transactions": _reads(OWN),
    "get_scheduled_transactions": _reads(OWN),
    "read_file": _reads(OWN),
    "get_user_info": _reads(OWN),
    "send_money": _changes("sends the money to other people", open_world=True),
    "schedule_transaction": _adds("sends money to other people later", open_world=True),
    "update_scheduled_transaction": _changes("overwrites the recipient and the amount", open_world=True),
    "update_password": _changes("replaces the password"),
    "update_user_info": _changes("overwrites the user's data"),
    # slack
    "get_channels": _reads(OWN),
    "read_channel_messages": _reads(OWN),
    "read_inbox": _reads(OWN),
    "get_users_in_channel": _reads(OWN),
    "send_direct_message": _adds("another person gets the message", open_world=True),
    "send_channel_message": _adds("the channel gets the message", open_world=True),
    "add_user_to_channel": _adds("another person can read the channel", open_world=True),
    "invite_user_to_slack": _adds("an outside person gets an invitation", open_world=True),
    "remove_user_from_slack": _changes("somebody loses access", open_world=True),
    "get_webpage": _reads("any website sees the URL", open_world=True),
    "post_webpage": _adds("any website gets the content", open_world=True),
}
