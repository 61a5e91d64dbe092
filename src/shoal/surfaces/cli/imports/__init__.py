"""Reading the homes of other products: what each holds, as one record, and all that has no place here, with the reason.

A reader (`openclaw`, `hermes`, `nanobot`, `openwebui`) only reads. `bring` puts what was found into a home of Shoal.
"""
