"""Matrix adapter: uses the client-server API of a homeserver. Encrypted rooms require the `matrix` extra."""

from shoal.platforms.matrix.settings import MatrixSettings
from shoal.platforms.record import Platform, SetupQuestion

PLATFORM = Platform(
    title="Matrix",
    settings=MatrixSettings,
    adapter="shoal.platforms.matrix.adapter:MatrixAdapter",
    variables={"access_token": "MATRIX_ACCESS_TOKEN"},
    questions=(
        SetupQuestion("homeserver", "Homeserver URL, https://…"),
        SetupQuestion("user", "The bot's user id, @name:server"),
        SetupQuestion("access_token", "The bot's access token", "a Matrix access token"),
    ),
    optional=("nio", "Shoal cannot read encrypted rooms"),
    secret_shapes=(("a Matrix access token", r"(?:syt|mct|mat)_"),),
)
