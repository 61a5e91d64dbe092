-- Full-text search over messages. The index has no copy of the text. Its rows are in the order of the messages, and
-- `places` are a thread and its channel as words. Appends fill it themselves: a trigger took seven times as long.
create table search_events (
    id     integer primary key,
    thread text not null,
    seq    integer not null
);
create virtual table search_words using fts5(
    words, places, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2'
);
